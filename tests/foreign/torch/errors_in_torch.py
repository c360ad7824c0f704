"""The errors of lists of tensors, by those of the plain computation."""

import torch
from error_ratios import error_ratio


def largest_ratio(found, plain, truth):
    """The largest of the results' ratios (error_ratios.error_ratio)."""
    ratios = []
    for x, p, t in zip(found, plain, truth):
        finite = ~t.isneginf()
        if finite.any():
            error, own = ((each.double() - t)[finite].abs().max().item() for each in (x, p))
            ratios.append(error_ratio(error, own, torch.finfo(x.dtype).eps * t[finite].abs().max().item()))
    return max(ratios)
