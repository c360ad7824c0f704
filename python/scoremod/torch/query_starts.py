"""The start of each batch's queries in its sequence: a number, which is an index offset of the call, or a tensor, which the functions read. Where queries
end with their keys (bottom right), it is how many more keys there are."""

from typing import Any

import torch

from scoremod.call_spec import NO_OFFSETS, Offsets, check_offsets, checked_start, wrong_start
from scoremod.errors import InvalidArgumentError
from scoremod.query_positions import is_bottom_right, without_needless_mask
from scoremod.torch.call import check_places, check_rank
from scoremod.torch.checked_integers import checked_starts
from scoremod.torch.dtensors import is_sharded
from scoremod.torch.sequences import SequenceArguments, dense_int32
from scoremod.user_functions import check_callable


def is_step(mask_mod, q_start, query):
    """Whether a call's only query stands at the last key, so that a causal mask keeps all: known without a look at the rest of the call."""
    is_one = isinstance(query, torch.Tensor) and query.dim() > 1 and is_bottom_right(q_start)
    return is_one and without_needless_mask(mask_mod, query.shape[-2]) is None


def started(q_start, query, key, sequences: SequenceArguments, score_mod, mask_mod, offsets):
    """(score_mod, mask_mod, offsets, whether these are a q_start alone) of flex_attention's arguments."""
    q_offsets, kv_offsets, page_table, lengths = sequences.q_offsets, sequences.kv_offsets, sequences.page_table, sequences.lengths
    if not torch.compiler.is_dynamo_compiling():  # where attend_graph looks at them
        check_places(query, key, key)
    check_rank("query", query)
    check_rank("key", key)
    check_offsets(offsets)
    if isinstance(q_offsets, torch.Tensor) and q_offsets.dim() != 1:
        raise InvalidArgumentError(f"q_offsets: expected 1 dimension [batch + 1], found shape {tuple(q_offsets.shape)}")
    batch = q_offsets.shape[0] - 1 if isinstance(q_offsets, torch.Tensor) else query.shape[0]
    if is_sharded(q_start):
        q_start = q_start.full_tensor()
    if is_bottom_right(q_start):
        if offsets is not NO_OFFSETS:
            raise InvalidArgumentError(f'q_start="{q_start}": expected no offsets beside it, found {offsets!r:.100}; give q_start as numbers')
        counts = _counts(query, key, q_offsets, kv_offsets, page_table, lengths, batch)
        mask_mod = without_needless_mask(mask_mod, query.shape[-2] if q_offsets is None else None)
        if score_mod is None and mask_mod is None:
            return None, None, offsets, False
        q_start = _difference(*counts, batch, query)
        if isinstance(q_start, torch.Tensor):
            return *_at(q_start, score_mod, mask_mod), offsets, False
    if any(Offsets(*offsets)[2:3]):
        raise InvalidArgumentError(f"q_start: expected no offsets.query beside it, which says the same, found {Offsets(*offsets).query}; give one of them")
    if isinstance(q_start, torch.Tensor) and q_start.dim() == 1:
        return *_at(_of_each_batch(q_start, query, batch), score_mod, mask_mod), offsets, False
    first: Any = q_start  # an open number remains one
    if not isinstance(q_start, torch.SymInt):
        first = checked_start(q_start, batch)
    elif q_start < 0:
        raise wrong_start(q_start, batch)
    # Ragged problems take no index offsets, and lengths of queries count from a call's first.
    if q_offsets is not None or (isinstance(lengths, (tuple, list)) and lengths[0] is not None):
        return *_at(torch.full((batch,), first, dtype=torch.int32, device=query.device), score_mod, mask_mod), offsets, False
    return score_mod, mask_mod, Offsets(*offsets)._replace(query=first), offsets is NO_OFFSETS


def at_positions(q_start, query, key, sequences: SequenceArguments, score_mod, mask_mod):
    """(score_mod, mask_mod) of indices alone, of flex_attention's arguments."""
    score_mod, mask_mod, offsets, _ = started(q_start, query, key, sequences, score_mod, mask_mod, NO_OFFSETS)
    if offsets is NO_OFFSETS:
        return score_mod, mask_mod
    return _at(torch.full((query.shape[0],), offsets.query, dtype=torch.int32, device=query.device), score_mod, mask_mod)


def _of_each_batch(q_start, query, batch):
    return checked_starts(_integers("q_start", q_start, query, batch))


def _integers(name, tensor, query, batch):
    numbers = dense_int32(name, tensor, query, 1, "[batch]")
    if numbers.shape[0] != batch:
        raise InvalidArgumentError(f"{name}: expected one for each of {batch} batches, found shape {tuple(numbers.shape)}")
    return numbers


def _counts(query, key, q_offsets, kv_offsets, page_table, lengths, batch):
    """How many keys and how many queries the sequences have: int32 [batch], or one number for all."""
    of_queries, of_keys = lengths if isinstance(lengths, (tuple, list)) and len(lengths) == 2 else (None, lengths)
    queries = _count(query, q_offsets, of_queries, batch, "q_offsets")
    if of_keys is None and page_table is not None:
        raise InvalidArgumentError("page_table: expected lengths of the keys beside it, found none; give lengths=, of each batch")
    keys = _count(query, q_offsets if kv_offsets is None and page_table is None else kv_offsets, of_keys, batch, "kv_offsets", key)
    return keys, queries


def _difference(keys, queries, batch, query):
    """The q_start with which queries end where their keys do, below 0 where there are more queries: an integer from 0 on, or int32 [batch]."""
    start = keys - queries
    if isinstance(start, torch.Tensor) or start >= 0:
        return start
    return torch.full((batch,), start, dtype=torch.int32, device=query.device)


def _count(query, offsets, lengths, batch, name, tensor=None):
    """How many queries, or keys of `tensor`, the sequences have: int32 [batch], or one number for all."""
    if lengths is not None:
        lengths = lengths.full_tensor() if is_sharded(lengths) else lengths
        return _integers("lengths", lengths, query, batch)
    if offsets is not None:
        return dense_int32(name, offsets, query, 1, "[batch + 1]").diff()
    return (query if tensor is None else tensor).shape[-2]


def _at(starts, score_mod, mask_mod):
    """Functions of positions as ones of indices."""
    for name, function in (("score_mod", score_mod), ("mask_mod", mask_mod)):
        if function is not None and not torch.compiler.is_dynamo_compiling():
            check_callable(name, function)

    def score_mod_at_positions(score, b, h, q_idx, kv_idx):
        return score_mod(score, b, h, q_idx + starts[b], kv_idx)

    def mask_mod_at_positions(b, h, q_idx, kv_idx):
        return mask_mod(b, h, q_idx + starts[b], kv_idx)

    return None if score_mod is None else score_mod_at_positions, None if mask_mod is None else mask_mod_at_positions
