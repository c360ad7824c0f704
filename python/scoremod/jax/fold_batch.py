"""jax.vmap of attention: the mapped axis becomes part of the batch dimension, so one call computes all (scoremod.folded_program). Ragged tensors get
the mapped calls' tokens one after the other; a pool of blocks that all share stays one."""

import jax
import jax.numpy as jnp
from jax import lax

from scoremod.errors import UnsupportedError
from scoremod.jax.open_sizes import comparable
from scoremod.folded_program import folded
from scoremod.places import FACTORS

_TABLE_REMEDY = "use jax.lax.map, or index it before the attention"


def batch_forward(primitive, arguments, dims, *, call, with_lse, wanted):
    if call.amax_o:
        raise UnsupportedError("return_amax_o: expected no jax.vmap, found one: its calls become one, with one largest magnitude. Use jax.lax.map")
    if call.sink and dims[3 + _sink_at(call)] is not None:
        return _one_by_one(primitive, arguments, dims, call=call, with_lse=with_lse, wanted=wanted)
    if _count(arguments, dims) == 0:
        return _none(primitive, arguments, dims, call=call, with_lse=with_lse, wanted=wanted)
    fold = _Fold(call, arguments, dims)
    operands = fold.operands(arguments[3:], dims[3:], mapped=[dim is not None for dim in dims[3:]])
    qkv = fold.qkv()
    o, *lse = primitive.bind(*qkv, *operands, call=fold.call(), with_lse=with_lse, wanted=wanted)
    return [fold.unfold(o, fold.axis), *(fold.unfold(x, 0) for x in lse)], [fold.axis, *(0 for _ in lse)]


def batch_backward(primitive, arguments, dims, *, call, wanted):
    if call.sink and (dims[6 + _sink_at(call)] is not None or _sink_at(call) in wanted):
        return _one_by_one(primitive, arguments, dims, call=call, wanted=wanted)
    if _count(arguments, dims) == 0:
        return _none(primitive, arguments, dims, call=call, wanted=wanted)
    fold = _Fold(call, arguments, dims)
    # Each of the mapped calls has its own gradient of an operand that they share.
    mapped = [dim is not None or i in wanted for i, dim in enumerate(dims[6:])]
    operands = fold.operands(arguments[6:], dims[6:], mapped)
    lse = fold.tensor(arguments[4], dims[4], 0)
    (q, k, v), (o, d_o) = fold.qkv(), (fold.tensor(arguments[i], dims[i]) for i in (3, 5))
    gradients = primitive.bind(q, k, v, o, lse, d_o, *operands, call=fold.call(), wanted=wanted)
    axes = [fold.axis] * 3 + [0] * len(wanted)
    unfolded = [fold.unfold(x, fold.axis) for x in gradients[:3]]
    for i, gradient in zip(wanted, gradients[3:]):
        decl = call.program.operands[i]
        if decl.table_rank:
            unfolded.append(gradient)
        elif "b" in decl.axes:
            unfolded.append(fold.unfold(gradient, 0))
        else:
            # Every batch of one mapped call read the same entry.
            unfolded.append(fold.unfold(gradient.astype(jnp.float32), 0).sum(axis=1).astype(gradient.dtype))
    return unfolded, axes


def _sink_at(call):
    """The number of the sink among a call's operands and what is bound after them."""
    return len(call.program.operands) + call.bound().index("sink")


def _count(arguments, dims):
    """How many calls are mapped."""
    return next(array.shape[dim] for array, dim in zip(arguments, dims) if dim is not None)


def _shape_of_one(array, dim):
    """The shape of one mapped call's array."""
    return jax.ShapeDtypeStruct(array.shape if dim is None else array.shape[:dim] + array.shape[dim + 1 :], array.dtype)


def _none(primitive, arguments, dims, **parameters):
    """The results of no calls."""
    of_one = jax.eval_shape(lambda *arrays: primitive.bind(*arrays, **parameters), *map(_shape_of_one, arguments, dims))
    return [jnp.zeros((0, *each.shape), each.dtype) for each in of_one], [0] * len(of_one)


def _one_by_one(primitive, arguments, dims, **parameters):
    """The mapped calls in turn: each has a sink, or a gradient of one, of its own, and a problem has one for each head."""
    mapped = [jnp.moveaxis(array, dim, 0) for array, dim in zip(arguments, dims) if dim is not None]

    def one(mapped):
        mapped = iter(mapped)
        return primitive.bind(*(array if dim is None else next(mapped) for array, dim in zip(arguments, dims)), **parameters)

    results = lax.map(one, mapped)
    return results, [0] * len(results)


class _Fold:
    def __init__(self, call, arguments, dims):
        self._call = call
        self.axis = call.axis("B")
        self._count = _count(arguments, dims)
        self._qkv, self._dims = arguments[:3], dims[:3]
        sizes = call.sizes(*(_shape_of_one(array, dim) for array, dim in zip(self._qkv, self._dims)))
        self._batch = sizes.batch
        self._program = None

    def call(self):
        """The folded call, once operands() was called."""
        place = self._call.place
        if self._call.is_ragged:
            place = place._replace(sequences=self._count * self._batch)
        return self._call._replace(program=self._program, place=place)

    def qkv(self):
        tensors = [self.tensor(array, dim) for array, dim in zip(self._qkv, self._dims)]
        return [tensors[0], *self._qkv[1:]] if self._shares_pool() else tensors

    def _shares_pool(self):
        return self._call.is_paged and self._dims[1] is None and self._dims[2] is None

    def tensor(self, array, dim, axis=None):
        """A tensor with a batch dimension, all mapped ones in it."""
        axis = self.axis if axis is None else axis
        if dim is None:
            array, dim = jnp.broadcast_to(jnp.expand_dims(array, axis), _inserted(array.shape, axis, self._count)), axis
        array = jnp.moveaxis(array, dim, axis)
        return array.reshape(*array.shape[:axis], -1, *array.shape[axis + 2 :])

    def unfold(self, array, axis):
        return array.reshape(*array.shape[:axis], self._count, -1, *array.shape[axis + 1 :])

    def operands(self, arrays, dims, mapped):
        """The operands' arrays for the folded program, which this makes, too. mapped: which operands differ between the mapped calls."""
        decls = self._call.program.operands
        with comparable():
            self._program = folded(self._call.program, self._batch, mapped, _TABLE_REMEDY)
        bound = [self._bound(*each) for each in zip(self._call.bound(), arrays[len(decls) :], dims[len(decls) :])]
        return [self._operand(*each) for each in zip(decls, arrays, dims, mapped)] + bound

    def _bound(self, name, array, dim):
        """An argument after the operands, for the folded batch. All but a sink and FP8 factors have a row for each batch."""
        if name in FACTORS and dim is not None:
            raise UnsupportedError("descale_q, descale_k, descale_v, scale_o: expected the same in all calls of a jax.vmap, found mapped ones. Use jax.lax.map")
        if name in (blocks := self._call.block_letters()):
            if self._call.place is not None:
                raise UnsupportedError(f"{name}: expected one factor in a jax.vmap over sequences or pages, found block scales. Use jax.lax.map")
            return jnp.tile(array, (self._count, 1, 1, 1)) if blocks[name].startswith("B") else array
        if name == "sink" or name in FACTORS:
            return array
        array = jnp.broadcast_to(array, (self._count, *array.shape)) if dim is None else jnp.moveaxis(array, dim, 0)
        first = jnp.arange(self._count, dtype=jnp.int32)
        if name.startswith("offsets"):
            number = 0 if name == "offsets_q" else 1
            tokens = _shape_of_one(self._qkv[number], self._dims[number]).shape[0]
            array = array + first[:, None] * tokens
            return jnp.concatenate([array[:, :-1].reshape(-1), array[-1, -1:]])
        if name.startswith("page_table"):
            number = 1 if name == "page_table_k" else 2
            if not self._shares_pool():
                blocks = _shape_of_one(self._qkv[number], self._dims[number]).shape[self.axis]
                # A number of no block stays one, where it would become another call's block.
                array = jnp.where((array >= 0) & (array < blocks), array + first[:, None, None] * blocks, -1)
        return array.reshape(-1, *array.shape[2:])

    def _operand(self, decl, array, dim, mapped):
        if "b" in decl.axes:
            return self.tensor(array, dim, 0)
        if not mapped:
            return array
        array = jnp.moveaxis(array, dim, 0) if dim is not None else jnp.broadcast_to(array, (self._count, *array.shape))
        return array if decl.table_rank else jnp.repeat(array, self._batch, axis=0)


def _inserted(shape, axis, size):
    return (*shape[:axis], size, *shape[axis:])
