"""Calls without queries or keys, of which there is nothing to compute."""

import torch

from scoremod.sizes import sizes_of
from scoremod.torch.call import LAYOUT, check_dtypes, check_places
from scoremod.torch.strides import empty_output, of_each_batch


def is_empty(query, key, value, options):
    """Whether there are no batches, heads, queries or keys. Varlen tokens and pages of a KV cache are never none."""
    if options.place is None:
        for x in (query, key, value):
            for size in x.shape[:-1]:
                if isinstance(size, int) and size == 0:
                    return True
    return False


def of_nothing(query, key, value, bound, options, captured):
    """(o, lse, largest scores, largest magnitude) of such a call, each of whose tensors has a gradient of 0: each row has no key. bound: the tensors of
    options.bound(); captured: what the functions read, as far as that is known."""
    check_places(query, key, value)
    check_dtypes(query, key, value)
    key, value = of_each_batch(query, key, value)
    sizes_of(LAYOUT, query, key, value, may_be_empty=True)
    o = empty_output(query, value, options.output_dtype(query)).zero_()
    rows = torch.full(query.shape[:-1], -torch.inf, dtype=torch.float32, device=query.device)
    lse = rows
    if options.sink:  # which is all that a row's sum has
        lse = torch.logaddexp(rows, bound[options.bound().index("sink")].float()[:, None])
    for tensor in (query, key, value, *bound, *captured):
        if tensor.requires_grad:
            zero = tensor.reshape(-1)[:0].sum()  # whatever the tensor holds
            o, lse = o + zero.to(o.dtype), lse + zero
    return o, lse, rows, torch.zeros((), dtype=torch.float32, device=query.device)
