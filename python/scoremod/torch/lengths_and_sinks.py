"""Lengths of sequences as part of a mask_mod, and a sink beside the keys' terms of a softmax: both run on every backend."""

from typing import Any

import torch

from scoremod.errors import InvalidArgumentError
from scoremod.torch.checked_integers import checked_lengths
from scoremod.user_functions import check_callable


def bounded(mask_mod, lengths, batch, most, first=0):
    """The mask_mod that also keeps indices below each batch's lengths. lengths: an integer tensor [batch] for the keys, or a pair of such for
    queries and keys, either of which may be None. most: (queries, keys), how many there are at most; None where a shard's lengths may be beyond it.
    first: the batch that lengths[0] is of."""
    is_pair = isinstance(lengths, (tuple, list)) and len(lengths) == 2
    of_queries, of_keys = lengths if is_pair else (None, lengths)
    of_queries, of_keys = (_checked(tensor, batch, *each) for tensor, *each in ((of_queries, most[0], "queries"), (of_keys, most[1], "keys")))
    if of_queries is None and of_keys is None:
        return mask_mod
    if mask_mod is not None and not torch.compiler.is_dynamo_compiling():
        check_callable("mask_mod", mask_mod)

    def bounded_mask(b, h, q_idx, kv_idx) -> Any:
        kept = [] if mask_mod is None else [mask_mod(b, h, q_idx, kv_idx)]
        if kept and not isinstance(kept[0], (bool, torch.Tensor)):
            return kept[0]  # the tracer says what is wrong with it
        own = b - first if first else b
        if of_queries is not None:
            kept.append(q_idx < of_queries[own])
        if of_keys is not None:
            kept.append(kv_idx < of_keys[own])
        keep = kept[0]
        for each in kept[1:]:
            keep = keep & each
        return keep

    return bounded_mask


def _checked(tensor, batch, most, of):
    if tensor is None:
        return None
    if not isinstance(tensor, torch.Tensor) or tuple(tensor.shape) != (batch,) or tensor.dtype not in (torch.int32, torch.int64):
        found = f"{tensor.dtype} of shape {tuple(tensor.shape)}" if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise InvalidArgumentError(
            f"lengths: expected an int32 or int64 tensor of shape ({batch},), a length for each batch, or a pair of them for queries and keys; found {found}"
        )
    return checked_lengths(tensor, most, of)


def with_sink(o, lse, sink, offsets_q=None):
    """(o, lse) of the softmax whose sums have exp(sink) beside the keys' terms, from those of the softmax without. Differentiable in all three; a
    row without a key gives 0 and the sink, and so does any row whose sink is inf, whatever its keys hold. offsets_q: those of varlen queries, of which
    tokens in no sequence keep their LSE."""
    sink = checked_sink(sink, lse.shape[1]).to(lse.dtype)
    if lse.dim() == 3:
        sink = sink[:, None]
    takes_all, is_none = torch.isposinf(sink), torch.isneginf(sink)
    # Derivatives of branches that are not taken must be numbers, too.
    number = sink.masked_fill(takes_all | is_none, 0)
    of_keys = lse.masked_fill(takes_all, 0)
    share = torch.sigmoid(of_keys - number).masked_fill(is_none, 1)  # of an LSE's shape: what is left to the keys
    scaled = o.to(lse.dtype).masked_fill(takes_all[..., None], 0) * share[..., None]
    joined = torch.where(is_none, of_keys, torch.logaddexp(of_keys, number))
    joined = torch.where(takes_all, sink, joined)
    if offsets_q is not None:
        token = torch.arange(lse.shape[0], device=lse.device)
        joined = torch.where(((token >= offsets_q[0]) & (token < offsets_q[-1]))[:, None], joined, lse)
    return scaled.to(o.dtype), joined


def checked_sink(sink, heads):
    """The sink of each of so many heads."""
    if not isinstance(sink, torch.Tensor) or tuple(sink.shape) not in ((), (heads,)) or not sink.is_floating_point() or sink.dtype.itemsize == 1:
        found = f"{sink.dtype} of shape {tuple(sink.shape)}" if isinstance(sink, torch.Tensor) else type(sink).__name__
        raise InvalidArgumentError(
            f"sink: expected a float tensor of shape ({heads},), one for each query head, or of one number, of 16 bits or more; found {found}"
        )
    return sink if sink.dim() else sink.expand(heads)
