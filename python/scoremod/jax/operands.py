"""Captured arrays as operands of a score program: which reads of an array are a broadcast operand, and which a table's.

An array that is indexed by the indices themselves (slopes[h], ids[b, kv_idx]) becomes a tensor with a dimension for each of them.
Indexed by anything else (bias[h, q_idx - kv_idx + n]) it becomes a table, read at computed indices that are clamped to its extents as
jnp clamps them.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from scoremod.errors import InvalidArgumentError
from scoremod.jax.arrays import beyond_int32, too_wide
from scoremod.operand_reads import OperandReads
from scoremod.program import AXES, operand_name
from scoremod.user_functions import names_of

# The type that an array's elements have in a program; narrow integers are widened before, and 64 bits cut to 32.
OPERAND_TYPES = {
    **{np.dtype(name): "f32" for name in ("float64", "float32", "float16")},
    jnp.dtype(jnp.bfloat16): "f32",
    **{np.dtype(name): "i32" for name in ("int64", "int32", "int16", "int8", "uint16", "uint8")},
    np.dtype(np.bool_): "bool",
}


def operand_array(array):
    """The array in a dtype that operands have."""
    type = OPERAND_TYPES[np.dtype(array.dtype)]
    number = too_wide(array)
    if number is not None:
        raise InvalidArgumentError(beyond_int32(f"a captured array of shape {array.shape}", number))
    if type == "i32":
        return array.astype(jnp.int32)
    return array.astype(jnp.float32) if array.dtype == np.float64 else array


class ArrayView(NamedTuple):
    """A uniform array after indexing.

    indices[d] is the node that indexes dimension d of `base`, or None. dims[i] is the dimension of base that the view's dimension i runs
    along, or None for one of size 1. guards are (condition, fill) nodes: the value is fill where the condition is false."""

    base: Any
    indices: tuple
    dims: tuple
    guards: tuple = ()


class Read(NamedTuple):
    """One operand made of a captured array: base, with some dimensions fixed, the others cut to `sizes` (if given) and reordered."""

    base: Any
    fixed: tuple
    order: tuple
    sizes: tuple | None

    def array(self):
        array = operand_array(jnp.asarray(self.base.compute()))
        for dim, position in sorted(self.fixed, reverse=True):
            array = lax.index_in_dim(array, position, dim, keepdims=False)
        if self.sizes is not None:
            array = lax.slice(array, (0,) * array.ndim, self.sizes)
        return array if self.order == tuple(range(array.ndim)) else lax.transpose(array, self.order)

    def known_array(self):
        """The whole captured array; None for one that is traced or computed."""
        return self.base.known_array()

    def describe(self):
        return "captured array"


class Computed(NamedTuple):
    """One operand that XLA computes from a score-free value, for every index that it depends on."""

    value: Any
    sizes: tuple

    def array(self):
        sizes = dict(zip(AXES, self.sizes))
        return operand_array(jnp.asarray(self.value.over(sizes)))

    def known_array(self):
        return self.value.known_array()

    def describe(self):
        return "computed by XLA" if self.value.deps else "scalar"


def called(sources, functions):
    """operand's name -> the name by which the functions read its captured array."""
    return names_of({operand_name(i): source.base.array for i, source in enumerate(sources) if isinstance(source, Read)}, functions)


class Operands:
    """The operands that a trace has found, each once."""

    def __init__(self, builder, sizes, indices):
        self._builder = builder
        self._sizes = sizes
        self._indices = indices
        self._reads = OperandReads(builder, sizes)
        self.sources = self._reads.sources

    def scalar(self, value):
        """The node of a score-free scalar as an operand over the axes that it varies along; a scalar operand for a uniform one."""
        source = Computed(value, tuple(self._sizes[axis] for axis in AXES))
        axes = value.axes()
        return self._reads.computed(OPERAND_TYPES[value.dtype], axes, [self._indices[axis].node for axis in axes], source)

    def call_value(self, source):
        """The node of an i32 scalar that is given at the call."""
        return self._reads.computed("i32", (), [], source)

    def read(self, view):
        """The node of a view that one element is left of."""
        builder = self._builder
        fixed, indices, dims = [], [], []
        for dim, (node, size) in enumerate(zip(view.indices, view.base.shape)):
            position = 0 if node is None else builder.constant_value(node)  # nothing has indexed a dimension of size 1
            if position is None:
                indices.append(node)
                dims.append(dim)
            else:
                fixed.append((dim, min(max(position, 0), size - 1)))
        type = OPERAND_TYPES[view.base.dtype]
        extents = [view.base.shape[dim] for dim in dims]
        node = self._reads.captured(type, indices, extents, lambda order, sizes: Read(view.base, tuple(fixed), order, sizes))
        if node is None:
            return None
        for condition, fill in view.guards:
            node = builder.op("select", condition, node, builder.constant(fill, type))
        return node


def whole(value):
    """The view of an array of which nothing is indexed yet; None if operands can't have its dtype."""
    if value.view is not None:
        return value.view
    if not value.is_uniform or not value.shape or value.dtype not in OPERAND_TYPES or 0 in value.shape:
        return None
    return ArrayView(value, (None,) * len(value.shape), tuple(range(len(value.shape))))


def _dynamic_slice(tracer, params, value, *starts):
    """Starts are clamped so that the slice fits: for a size of 1, to the dimension's extent."""
    view = whole(value)
    if view is None:
        return None
    indices, dims = list(view.indices), list(view.dims)
    for i, (size, start) in enumerate(zip(params["slice_sizes"], starts)):
        if size == 1 and start.node is not None:
            tracer.check_extent(view.base, dims[i], value.shape[i], start.node)
        if size == value.shape[i]:
            continue
        node = tracer.node_of(start) if size == 1 else None
        if node is None or tracer.builder.type(node) != "i32":
            return None
        indices[dims[i]], dims[i] = node, None
    return view._replace(indices=tuple(indices), dims=tuple(dims))


def _squeeze(tracer, params, value):
    view = whole(value)
    if view is None:
        return None
    indices = list(view.indices)
    for i in params["dimensions"]:
        if view.dims[i] is not None:  # a dimension of size 1 that nothing had indexed
            indices[view.dims[i]] = tracer.builder.constant(0, "i32")
    dims = tuple(dim for i, dim in enumerate(view.dims) if i not in params["dimensions"])
    return view._replace(indices=tuple(indices), dims=dims)


def _gather(tracer, params, value, starts):
    """x[i, j] for vectors of indices, as jnp.take and x.at[...].get write it: one index for each collapsed dimension."""
    view, numbers = whole(value), params["dimension_numbers"]
    collapsed = tuple(numbers.collapsed_slice_dims)
    sizes = tuple(1 if d in collapsed else n for d, n in enumerate(value.shape))
    plain = collapsed == tuple(numbers.start_index_map) and not numbers.operand_batching_dims
    if view is None or starts.vector is None or not plain or tuple(params["slice_sizes"]) != sizes:
        return None
    builder = tracer.builder
    indices, guards = list(view.indices), list(view.guards)
    fills = params["mode"] == lax.GatherScatterMode.FILL_OR_DROP
    for dim, node in zip(collapsed, starts.vector):
        if view.dims[dim] is None:
            return None
        if params["mode"] == lax.GatherScatterMode.PROMISE_IN_BOUNDS:
            tracer.check_extent(view.base, view.dims[dim], value.shape[dim], node)
        indices[view.dims[dim]] = node
        if fills and not _within(tracer, node, value.shape[dim]):
            low = builder.op("ge", node, builder.constant(0, "i32"))
            high = builder.op("lt", node, builder.constant(value.shape[dim], "i32"))
            guards.append((builder.op("and", low, high), _fill_value(params["fill_value"], value.dtype)))
    dims = tuple(dim for i, dim in enumerate(view.dims) if i not in collapsed)
    return ArrayView(view.base, tuple(indices), dims, tuple(guards))


def _within(tracer, node, extent):
    """Whether an index is known to lie in the array."""
    axis, position = tracer.builder.index_axes.get(node), tracer.builder.constant_value(node)
    return tracer.sizes[axis] <= extent if axis else position is not None and 0 <= position < extent


def _fill_value(fill, dtype):
    """The value that XLA's gather gives out of bounds: NaN, the smallest signed or largest unsigned integer, or true."""
    if fill is not None:
        return fill
    if jnp.issubdtype(dtype, jnp.floating):
        return float("nan")
    if dtype == jnp.bool_:
        return True
    info = jnp.iinfo(dtype)
    return info.max if jnp.issubdtype(dtype, jnp.unsignedinteger) else info.min


def index_vector(tracer, name, params, inputs):
    """The nodes of a vector of integers that is put together of scalars: [i] and [i, j, ...]. None for anything else."""
    if name == "broadcast_in_dim" and tuple(params["shape"]) == (1,) and inputs[0].shape == ():
        node = tracer.node_of(inputs[0])
        return [node] if node is not None and tracer.builder.type(node) == "i32" else None
    if name == "concatenate" and all(value.vector is not None for value in inputs):
        return [node for value in inputs for node in value.vector]
    if name == "concatenate" and len(inputs[0].shape) == 1:
        return None
    if name == "convert_element_type" and params["new_dtype"] == jnp.int32:
        return inputs[0].vector
    return None


VIEW_RULES = {"dynamic_slice": _dynamic_slice, "squeeze": _squeeze, "gather": _gather}
