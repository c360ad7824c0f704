"""Substitutes for a tensor that autograd saved: the same numbers in other memory or another dtype, and tensors that no backward can use.

name -> a function of the saved tensor. The tests hand its result back in the tensor's place.
"""

import torch


class Marked(torch.Tensor):
    """A class of tensors that changes nothing."""


class Wrapped(torch.Tensor):
    """A tensor whose numbers lie in another one, which operators see."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=inner.device)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), options=None):
        unwrapped = torch.utils._pytree.tree_map_only(cls, lambda x: x.inner, (arguments, options or {}))
        return function(*unwrapped[0], **unwrapped[1])


def _transposed(x):
    return x.transpose(0, -2).contiguous().transpose(0, -2) if x.dim() > 1 else x.clone()


def _packed(x):
    return torch.stack([torch.zeros_like(x), x, torch.zeros_like(x)], dim=-1).unbind(-1)[1]


def _part_of_larger(x):
    larger = x.new_zeros([size + 3 for size in x.shape])
    part = larger[tuple(slice(1, 1 + size) for size in x.shape)]
    return part.copy_(x)


def _backwards_in_memory(x):
    """The dimensions in the opposite order."""
    order = tuple(reversed(range(x.dim())))
    return x.permute(order).contiguous().permute(order)


def _between_addresses(x):
    return torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)


def _expanded(x):
    """Memory that its elements share, as far as they are equal."""
    for dim in range(x.dim()):
        first = x.narrow(dim, 0, 1)
        if torch.equal(first.expand_as(x), x):
            return first.clone().expand_as(x)
    return x.clone()


# The numbers are the same.
SAME = {
    "itself": lambda x: x,
    "detached": lambda x: x.detach(),
    "dense": lambda x: x.clone(memory_format=torch.contiguous_format),
    "transposed": _transposed,
    "packed": _packed,
    "first of a pack": lambda x: torch.stack([x, torch.zeros_like(x)]).unbind(0)[0],
    "part of a larger one": _part_of_larger,
    "backwards in memory": _backwards_in_memory,
    "between addresses": _between_addresses,
    "expanded": _expanded,
    "float64": lambda x: x.double() if x.is_floating_point() else x,
    "negated view": lambda x: torch._neg_view(-x) if x.is_floating_point() else x,
    "parameter": lambda x: torch.nn.Parameter(x.detach().clone(), requires_grad=x.is_floating_point()),
    "marked": lambda x: x.detach().clone().as_subclass(Marked),
    "wrapped": lambda x: Wrapped(x.detach().clone()),
}

# Some bits are lost.
ROUNDED = {
    "bfloat16": lambda x: x.bfloat16() if x.is_floating_point() else x,
    "transposed bfloat16": lambda x: _transposed(x.bfloat16()) if x.is_floating_point() else x,
    "float16": lambda x: x.half() if x.is_floating_point() else x,
    "bfloat16 and back": lambda x: x.bfloat16().to(x.dtype) if x.is_floating_point() else x,
}

# name -> what the error says was found.
UNUSABLE = {
    "flat": (lambda x: x.flatten()[None], "found "),
    "shorter": (lambda x: x.narrow(0, 0, x.shape[0] - 1), "found "),
    "longer": (lambda x: torch.cat([x, x], dim=-1), "found "),
    "other dimensions first": (lambda x: x[None].transpose(0, -1), "found "),
    "empty": (lambda x: x.flatten()[:0], r"of shape \(0,\)"),
    "meta": (lambda x: x.to("meta"), "on meta"),
    "integers": (lambda x: x.int() if x.is_floating_point() else x.float(), "found (int32|float32)"),
    "bytes": (lambda x: x.contiguous().view(torch.uint8), "found uint8"),
}
