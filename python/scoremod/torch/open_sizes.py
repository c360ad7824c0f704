"""Sizes that torch.compile knows nothing of (torch._dynamo.mark_unbacked, or a tensor's number): what a call needs of them is said here, and held when the
graph runs."""

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols


def hold_open_sizes(query, key, value):
    """Lets the sizes of a graph's tensors go together, and be none of 0."""
    if query.dim() != 4 or not any(free_unbacked_symbols(each.shape) for each in (query, key, value)):
        return
    for dimension, one, other in ((0, query, key), (0, query, value), (1, key, value), (2, key, value), (3, query, key)):
        sizes = one.shape[dimension], other.shape[dimension]
        if free_unbacked_symbols(sizes):
            torch._check(sizes[0] == sizes[1], lambda sizes=sizes: f"expected equal sizes of query, key and value, found {sizes[0]} and {sizes[1]}")
    for each in (query, key, value):
        for size in each.shape:
            if free_unbacked_symbols(size):
                torch._check(size >= 1, lambda size=size: f"expected tensors that are not empty, found a size of {size}")
