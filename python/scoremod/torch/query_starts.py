"""The start of each batch's queries in its sequence: a number, which is an index offset of the call, or a tensor, which the functions read."""

import numbers

import torch

from scoremod.arguments import int32
from scoremod.attention import Offsets
from scoremod.errors import InvalidArgumentError
from scoremod.torch.call_options import NO_OFFSETS
from scoremod.torch.checked_integers import checked_starts
from scoremod.torch.dtensors import is_sharded
from scoremod.torch.sequences import dense_int32


def started(q_start, query, q_offsets, lengths, score_mod, mask_mod, offsets):
    """(score_mod, mask_mod, offsets, whether these are a q_start alone) of flex_attention's arguments."""
    batch = q_offsets.shape[0] - 1 if isinstance(q_offsets, torch.Tensor) else query.shape[0]
    if is_sharded(q_start):
        q_start = q_start.full_tensor()
    if any(Offsets(*offsets)[2:3]):
        raise InvalidArgumentError(f"q_start: expected no offsets.query beside it, which says the same, found {Offsets(*offsets).query}; give one of them")
    if isinstance(q_start, torch.Tensor) and q_start.dim() == 1:
        return *_at(_of_each_batch(q_start, query, batch), score_mod, mask_mod), offsets, False
    if isinstance(q_start, bool) or not isinstance(q_start, (numbers.Integral, torch.SymInt)):
        found = f"{q_start.dtype} of shape {tuple(q_start.shape)}" if isinstance(q_start, torch.Tensor) else repr(q_start)
        raise InvalidArgumentError(f"q_start: expected an integer, or an int32 or int64 tensor of shape ({batch},), one for each batch; found {found:.100}")
    if q_start < 0:
        raise InvalidArgumentError(f"q_start: expected the index of the first query, from 0 on, found {q_start}")
    # Ragged problems take no index offsets, and lengths of queries count from a call's first.
    if q_offsets is not None or (isinstance(lengths, (tuple, list)) and lengths[0] is not None):
        return *_at(torch.full((batch,), q_start, dtype=torch.int32, device=query.device), score_mod, mask_mod), offsets, False
    first = q_start if isinstance(q_start, torch.SymInt) else int32(q_start, "q_start")
    return score_mod, mask_mod, Offsets(*offsets)._replace(query=first), offsets is NO_OFFSETS


def _of_each_batch(q_start, query, batch):
    starts = dense_int32("q_start", q_start, query, 1, "[batch]")
    if starts.shape[0] != batch:
        raise InvalidArgumentError(f"q_start: expected one for each of {batch} batches, found shape {tuple(starts.shape)}")
    return checked_starts(starts)


def _at(starts, score_mod, mask_mod):
    """Functions of positions as ones of indices."""

    def score_mod_at_positions(score, b, h, q_idx, kv_idx):
        return score_mod(score, b, h, q_idx + starts[b], kv_idx)

    def mask_mod_at_positions(b, h, q_idx, kv_idx):
        return mask_mod(b, h, q_idx + starts[b], kv_idx)

    return None if score_mod is None else score_mod_at_positions, None if mask_mod is None else mask_mod_at_positions
