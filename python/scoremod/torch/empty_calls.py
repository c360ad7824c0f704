"""Calls without queries or keys, of which there is nothing to compute."""

import torch

from scoremod.torch.call import FLOAT8, check_dtypes, check_places
from scoremod.torch.strides import empty_output, of_each_batch


def is_empty(query, key, value, options, offsets=()):
    """Whether there are no batches, heads, queries or keys. A KV cache's pages are never none. offsets: those of varlen sequences that leave out some
    tokens, in host memory; they may leave out all."""
    for x in (query,) if options.is_paged else (query, key, value):
        for size in x.shape[:-1]:
            if isinstance(size, int) and size == 0:
                return True
    return any(each[0] == each[-1] for each in offsets)


def of_nothing(query, key, value, bound, options, captured):
    """(o, lse, largest scores, largest magnitude) of such a call, each of whose tensors has a gradient of 0: each row has no key. bound: the tensors of
    options.bound(); captured: what the functions read, as far as that is known."""
    check_places(query, key, value)
    check_dtypes(query, key, value)
    if options.place is None:
        key, value = of_each_batch(query, key, value)
    options.sizes(query, key, value, bound, may_be_empty=True)
    o = empty_output(query, value, options.output_dtype(query)).zero_()
    rows = torch.full(query.shape[:-1], -torch.inf, dtype=torch.float32, device=query.device)
    lse = rows
    if options.sink:  # which is all that a row's sum has
        sink = bound[options.bound().index("sink")].float()
        lse = _of_sequences(torch.logaddexp(rows, sink), rows, bound[0]) if options.is_ragged else torch.logaddexp(rows, sink[:, None])
    for tensor in (query, key, value, *bound, *captured):
        if tensor.requires_grad:
            zero = tensor.reshape(-1)[:0].sum()  # whatever the tensor holds
            o, lse = o if o.dtype in FLOAT8 else o + zero.to(o.dtype), lse + zero
    return o, lse, rows, torch.zeros((), dtype=torch.float32, device=query.device)


def _of_sequences(lse, others, offsets):
    """[tokens, heads]: lse of the tokens of a sequence, and `others` of the rest."""
    token = torch.arange(lse.shape[0], device=lse.device)
    return torch.where(((token >= offsets[0]) & (token < offsets[-1]))[:, None], lse, others)
