"""Captured tensors as operands of a score program."""

from typing import Any, NamedTuple

import torch
from torch._C._functorch import is_functorch_wrapped_tensor

from scoremod.errors import UnsupportedError
from scoremod.program import AXES
from scoremod.torch.asked_sizes import evaluated
from scoremod.torch.checked_integers import ANY, CAPTURED, checked_int32
from scoremod.torch.values import Value, values_in

# The type that a tensor's elements have in a program. Integers are converted to int32, float64 to float32.
OPERAND_TYPES = {
    **dict.fromkeys((torch.float64, torch.float32, torch.float16, torch.bfloat16), "f32"),
    **dict.fromkeys((torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8), "i32"),
    torch.bool: "bool",
}


class Extents(NamedTuple):
    """axis -> (first index that the functions see, how many). are_limits: the axes that may have more indices than any sequence needs, so that a
    tensor may be shorter along them. is_part: whether the call is said to be a part of a larger problem, so that a tensor may have more heads."""

    b: tuple
    h: tuple
    q_idx: tuple
    kv_idx: tuple
    are_limits: tuple = ()
    is_part: bool = False

    def axes(self):
        return {axis: getattr(self, axis) for axis in AXES}

    def sizes(self):
        return {axis: count for axis, (_, count) in self.axes().items()}


def operand_tensor(tensor, limit=ANY, name=CAPTURED):
    """The tensor in a dtype that operands have. limit: the largest magnitude that its integers may have. name: for messages."""
    if tensor.layout != torch.strided:
        raise UnsupportedError(f"{name} of shape {tuple(tensor.shape)}: expected a dense one, found layout {tensor.layout}; use its to_dense()")
    if tensor.dtype == torch.float64:
        return tensor.to(torch.float32)
    if tensor.dtype == torch.int64 or (tensor.dtype == torch.int32 and limit < ANY):
        return checked_int32(tensor, limit, name) if has_data(tensor) else torch.ops.scoremod.checked_int32(tensor, limit, name)
    return tensor.to(torch.int32) if OPERAND_TYPES[tensor.dtype] == "i32" else tensor


def has_data(tensor):
    """Whether a tensor's numbers can be asked for: not those of torch.compile's tracing and of torch.func's transformations."""
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and not is_functorch_wrapped_tensor(tensor)
    return plain and tensor.device.type != "meta"


class ArrayView(NamedTuple):
    """A uniform tensor after indexing. indices[d] is the node that indexes dimension d of `base`, or None. dims[i] is the dimension of base that
    the view's dimension i runs along."""

    base: Value
    indices: tuple
    dims: tuple


class Read(NamedTuple):
    """One operand made of a captured tensor: base, with some dimensions fixed, the others cut to what a call has of `axes` (if given) and reordered.

    limit: the largest magnitude that its integers may have: a number, or what follows from a call's sizes (asked_sizes).
    extents: those of the call, which at() knows.
    """

    base: Any  # a Value, or what has a tensor as one does
    fixed: tuple
    order: tuple
    axes: tuple | None
    limit: Any = ANY
    extents: Extents | None = None

    def at(self, extents):
        """The source for a call of these Extents."""
        return self._replace(limit=evaluated(self.limit, extents), extents=extents)

    def identity(self):
        """The key by which reads of one trace are equal."""
        return self.base, self.fixed, self.order, self.axes is None

    def tensor(self, device):
        tensor = self.base.tensor
        for dim, position in sorted(self.fixed, reverse=True):
            tensor = tensor.select(dim, position)
        if self.axes is not None:
            for dim, axis in enumerate(self.axes):
                first, count = getattr(self.extents, axis)
                # Whether a size that torch.export leaves open is all of it isn't asked: the answer would hold for the whole graph.
                if isinstance(count, torch.SymInt) or count != tensor.shape[dim]:
                    tensor = tensor.narrow(dim, first, count)
        if self.order != tuple(range(tensor.dim())):
            tensor = tensor.permute(self.order)
        return operand_tensor(tensor, self.limit)

    def known_array(self):
        tensor = self.base.tensor
        return tensor.detach().float().numpy() if tensor.device.type == "cpu" and has_data(tensor) and tensor.is_floating_point() else None

    def describe(self):
        return "captured tensor"


class Computed(NamedTuple):
    """One operand that PyTorch computes from a score-free value, for every index that it depends on."""

    value: Any  # a Value, or what has a tensor as one does
    limit: Any = ANY
    extents: Extents | None = None

    def at(self, extents):
        """The source for a call of these Extents."""
        return self._replace(limit=evaluated(self.limit, extents), extents=extents)

    def identity(self):
        return self.value

    def tensor(self, device):
        tensor = self.value.tensor
        if tensor is not None:
            return operand_tensor(tensor if tensor.dim() == 0 else tensor.reshape(()), self.limit).to(device)
        assert self.extents is not None  # at() was called
        return operand_tensor(self.value.over(self.extents.axes(), device), self.limit).to(device)

    def known_array(self):
        return None

    def describe(self):
        return "computed by PyTorch" if self.value.deps else "scalar"


def learned(sources):
    """id -> tensor, of the captured tensors that have gradients and that these read."""
    return learned_by(source.base if isinstance(source, Read) else source.value for source in sources)


def learned_by(values):
    """id -> tensor, of the captured tensors that have gradients and that these Values are computed of."""
    found, pending = {}, list(values)
    while pending:
        value = pending.pop()
        if value.is_uniform and value.tensor is not None:
            found.update({id(value.tensor): value.tensor} if value.tensor.requires_grad else {})
        elif value.operation is not None:
            pending += values_in(value.operation[1:])
    return found


def whole(value):
    """The view of a tensor of which nothing is indexed yet; None if there is none before the call, or operands can't have its dtype."""
    if value.view is not None:
        return value.view
    if value.tensor is None or not value.is_uniform or not value.shape or value.dtype not in OPERAND_TYPES or 0 in value.shape:
        return None
    return ArrayView(value, (None,) * len(value.shape), tuple(range(len(value.shape))))


class CapturedReads:
    """Reads of captured tensors as nodes, on scoremod.operand_reads."""

    def __init__(self, builder, reads, extents):
        """extents: asked_sizes.AskedExtents."""
        self._builder, self._reads, self._extents = builder, reads, extents

    def scalar(self, value):
        """The node of a score-free element as an operand over the axes that it varies along; a scalar operand for a uniform one."""
        axes = value.axes()
        positions = [self._builder.node(axis, "i32") for axis in axes]
        return self._reads.computed(OPERAND_TYPES[value.dtype], axes, positions, Computed(value))

    def element(self, view):
        """The node of a view that one element is left of; None if a table has no room for so many indices."""
        fixed, indices = [], []
        for dim, node in enumerate(view.indices):
            position = 0 if node is None else self._builder.constant_value(node)
            if position is None:
                indices.append(node)
            else:
                fixed.append((dim, position))
        axes = [self._builder.nodes[node].op for node in indices]

        def source(order, sizes):
            return Read(view.base, tuple(fixed), order, None if sizes is None else tuple(axes))

        if all(axis in AXES for axis in axes) and len(set(axes)) == len(axes):
            # Indexed by the indices themselves: cut to what the call sees of it, which may start beyond 0.
            order = tuple(sorted(range(len(axes)), key=lambda i: AXES.index(axes[i])))
            read = Read(view.base, tuple(fixed), order, tuple(axes))
            sizes = [self._extents.count(axis) for axis in axes]
            return self._reads.captured(OPERAND_TYPES[view.base.dtype], indices, sizes, lambda *_: read)
        return self._reads.captured(OPERAND_TYPES[view.base.dtype], indices, [0] * len(indices), source)
