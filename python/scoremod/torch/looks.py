"""The looks of a call's tensors: everything but their addresses. A prepared call takes only tensors of the looks that it was made for.

prepared_calls holds every tensor of a call to this, and saved_tensors what autograd hands back to a backward.
"""

import operator
from typing import Any, NamedTuple

import torch

from scoremod.errors import InvalidArgumentError

try:  # one call of C++ for all tensors: in Python each tensor would take half a microsecond
    from torch._C._dynamo.guards import TensorGuards
except ImportError:
    TensorGuards = None

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_STRIDED = torch.strided
# Guards also tell apart whether tensors require gradients, and which modes are on: calls that look the same come in some such ways.
_MAX_GUARDS = 4


def span(shape, stride):
    """How many elements there are from the first to the last."""
    return 1 + sum(map(operator.mul, shape, stride)) - sum(stride)


class Look(NamedTuple):
    shape: torch.Size
    stride: tuple
    dtype: torch.dtype
    device: torch.device

    def nbytes(self):
        """From the first element to the last."""
        return span(self.shape, self.stride) * self.dtype.itemsize

    def empty(self):
        """A new tensor that looks so."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device)

    def __str__(self):
        return f"{str(self.dtype).removeprefix('torch.')} of shape {tuple(self.shape)} and strides {tuple(self.stride)} on {self.device}"


def look_of(tensor):
    return Look(tensor.shape, tensor.stride(), tensor.dtype, tensor.device)


def dense(shape, dtype, device):
    """The Look of a contiguous tensor."""
    shape = torch.Size(shape)
    stride, step = [], 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return Look(shape, tuple(reversed(stride)), dtype, device)


def hold_numbers(*tensors):
    """Whether each of these is one whose memory holds its numbers."""
    for tensor in tensors:  # a loop: all() with a generator takes a third longer, which each call would pay
        if type(tensor) not in _PLAIN or tensor.layout is not _STRIDED or tensor.is_neg() or tensor._is_zerotensor():
            return False
    return True


class Looks:
    """The looks of a call's tensors, by name, in the order in which the call takes them."""

    def __init__(self, looks):
        """looks: name -> Look."""
        self._names, self._looks = tuple(looks), tuple(looks.values())
        self._guards = ()

    def fit(self, tensors, plain=False):
        """Whether these tensors look so; with plain also whether they hold_numbers()."""
        for guard in self._guards:
            if guard(*tensors):
                return True
        return self._fit_slowly(tensors, plain)

    def _fit_slowly(self, tensors, plain):
        if len(tensors) != len(self._looks) or any((x.shape, x.stride(), x.dtype, x.device) != look for x, look in zip(tensors, self._looks)):
            return False
        if not hold_numbers(*tensors):
            return not plain
        if TensorGuards is not None and len(self._guards) < _MAX_GUARDS:
            sizes: list[Any] = [list(look.shape) for look in self._looks]
            strides: list[Any] = [list(look.stride) for look in self._looks]
            guard = TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
            if guard(*tensors):  # never where one tensor comes twice
                self._guards = (*self._guards, guard)
        return True

    def refuse_short(self, function, tensors):
        """Raises InvalidArgumentError for tensors whose storage ends before they do."""
        for name, look, tensor in zip(self._names, self._looks, tensors, strict=True):
            end, found = tensor.storage_offset() * look.dtype.itemsize + look.nbytes(), tensor.untyped_storage().nbytes()
            if found < end:
                raise InvalidArgumentError(
                    f"{function}: expected {name}'s storage to have the {end} bytes of memory that {look} reaches, found {found}; it was resized "
                    "(untyped_storage().resize_): give it its size back before the call"
                )

    def refuse(self, function, tensors):
        """Raises InvalidArgumentError for tensors that do not fit."""
        for name, look, tensor in zip(self._names, self._looks, tensors, strict=True):
            found = look_of(tensor)
            if found != look:
                raise InvalidArgumentError(f"{function}: expected {name} to be {look}, as its other tensors ask for; found {found}; convert it")
