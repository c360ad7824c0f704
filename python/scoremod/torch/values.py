"""The tensors of a traced function: what they depend on, how PyTorch computes each, and their nodes in the score program."""

import itertools
from typing import Any

import torch

from scoremod.program import AXES

_serials = itertools.count()


class Value:
    """One tensor of a traced function.

    deps: those of "score", "b", "h", "q_idx" and "kv_idx" that it depends on. Without any it is the same for every element of the score.
    tensor: the tensor itself, of a value without deps; it has the history of gradients that the caller's tensors have.
    literal: a Python number, if that is what the function's text says.
    node: the program's node, for a single element that has one; made on demand by the tracer.
    is_shared: whether another value shows the same memory.
    view: an ArrayView, for what is left of an array after some of its dimensions were indexed.
    operation: (function, arguments, keyword arguments) that make it, with Values for tensors; None for what no operation made.
    """

    def __init__(self, shape, dtype, deps=frozenset(), *, tensor=None, literal=None, axis=None, operation=None):
        self.shape = tuple(shape)
        self.dtype: Any = dtype
        self.deps = deps
        self.tensor: Any = tensor
        self.literal = literal
        self.node: int | None = None
        self.view: Any = None
        self.is_shared = False
        self.axis, self.operation = axis, operation
        self.serial = next(_serials)

    @property
    def is_uniform(self):
        return not self.deps

    @property
    def is_single(self):
        """Whether it has one element: a 0-dim tensor, or one of it such as score[None]."""
        return all(size == 1 for size in self.shape)

    def axes(self):
        return tuple(axis for axis in AXES if axis in self.deps)

    def over(self, extents, device):
        """The tensor of a single element without "score", with a dimension for each of its axes. extents: axis -> (first index, how many)."""
        axes = self.axes()

        def scalar(*indices):
            return evaluated(self, dict(zip(axes, indices))).reshape(())

        for position in reversed(range(len(axes))):
            scalar = torch.vmap(scalar, in_dims=tuple(0 if i == position else None for i in range(len(axes))))
        ranges = (torch.arange(first, first + count, dtype=torch.int32, device=device) for first, count in (extents[axis] for axis in axes))
        return scalar(*ranges)


def map_values(function, arguments) -> Any:
    """Arguments of an operation, with function(value) for each Value in them."""
    if isinstance(arguments, Value):
        return function(arguments)
    if isinstance(arguments, (list, tuple)):
        return type(arguments)(map_values(function, each) for each in arguments)
    if isinstance(arguments, dict):
        return {name: map_values(function, each) for name, each in arguments.items()}
    return arguments


def values_in(arguments):
    """The Values in the arguments of an operation."""
    found = []
    map_values(found.append, arguments)
    return found


def leaves_of(values):
    """The Values that no operation made among these and all that they are made of."""
    return [each for each in _made_of(values) if each.operation is None]


def evaluated(value, indices):
    """The tensor of a value without "score" at these indices (axis -> 0-dim tensor)."""
    results = {}
    for each in _made_of([value]):
        if each.axis is not None:
            result = indices[each.axis]
        elif each.operation is None:
            result = each.tensor if each.literal is None else torch.full(each.shape, each.literal, dtype=each.dtype)
        else:
            function, arguments, options = map_values(lambda value: results[value.serial], each.operation)
            result = function(*arguments, **options)
        results[each.serial] = result
    return results[value.serial]


def _made_of(values):
    """Values and all that they are made of, what is needed first."""
    needed, pending = {}, list(values)
    while pending:
        each = pending.pop()
        if each.serial not in needed:
            needed[each.serial] = each
            if each.operation is not None:
                pending.extend(values_in(each.operation[1:]))
    return [needed[serial] for serial in sorted(needed)]
