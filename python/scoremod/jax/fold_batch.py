"""jax.vmap of attention: the mapped axis becomes part of the batch dimension, so one call computes all (scoremod.folded_program)."""

import jax.numpy as jnp

from scoremod.folded_program import folded

_TABLE_REMEDY = "use jax.lax.map, or index it before the attention"


def batch_forward(primitive, arguments, dims, *, call, with_lse, wanted):
    fold = _Fold(call, arguments, dims)
    operands = fold.operands(arguments[3:], dims[3:], mapped=[dim is not None for dim in dims[3:]])
    qkv = [fold.tensor(array, dim) for array, dim in zip(arguments[:3], dims)]
    o, *lse = primitive.bind(*qkv, *operands, call=fold.call(), with_lse=with_lse, wanted=wanted)
    return [fold.unfold(o, fold.axis), *(fold.unfold(x, 0) for x in lse)], [fold.axis, *(0 for _ in lse)]


def batch_backward(primitive, arguments, dims, *, call, wanted):
    fold = _Fold(call, arguments, dims)
    # Each of the mapped calls has its own gradient of an operand that they share.
    mapped = [dim is not None or i in wanted for i, dim in enumerate(dims[6:])]
    operands = fold.operands(arguments[6:], dims[6:], mapped)
    lse = fold.tensor(arguments[4], dims[4], 0)
    tensors = {i: fold.tensor(arguments[i], dims[i]) for i in (0, 1, 2, 3, 5)}
    q, k, v, o, d_o = tensors.values()
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


class _Fold:
    def __init__(self, call, arguments, dims):
        self._call = call
        self.axis = call.axis("B")
        self._count = next(array.shape[dim] for array, dim in zip(arguments, dims) if dim is not None)
        q, dim = arguments[0], dims[0]
        self._batch = (q.shape if dim is None else q.shape[:dim] + q.shape[dim + 1 :])[self.axis]
        self._program = None

    def call(self):
        """The folded call, once operands() was called."""
        return self._call._replace(program=self._program)

    def tensor(self, array, dim, axis=None):
        """A tensor with a batch dimension, all mapped ones in it."""
        axis = self.axis if axis is None else axis
        if dim is None:
            array, dim = jnp.broadcast_to(jnp.expand_dims(array, axis), _inserted(array.shape, axis, self._count)), axis
        array = jnp.moveaxis(array, dim, axis)
        return array.reshape(*array.shape[:axis], self._count * self._batch, *array.shape[axis + 2 :])

    def unfold(self, array, axis):
        return array.reshape(*array.shape[:axis], self._count, self._batch, *array.shape[axis + 1 :])

    def operands(self, arrays, dims, mapped):
        """The operands' arrays for the folded program, which this makes, too. mapped: which operands differ between the mapped calls."""
        decls = self._call.program.operands
        self._program = folded(self._call.program, self._batch, mapped, _TABLE_REMEDY)
        # After the operands, the keys of a call with dropout: each batch has its own.
        keys = [self.tensor(array, dim, 0) for array, dim in zip(arrays[len(decls) :], dims[len(decls) :])]
        return [self._operand(*each) for each in zip(decls, arrays, dims, mapped)] + keys

    def _operand(self, decl, array, dim, mapped):
        if "b" in decl.axes:
            return self.tensor(array, dim, 0)
        if not mapped:
            return array
        array = jnp.moveaxis(array, dim, 0) if dim is not None else jnp.broadcast_to(array, (self._count, *array.shape))
        return array if decl.table_rank else jnp.repeat(array, self._batch, axis=0)


def _inserted(shape, axis, size):
    return (*shape[:axis], size, *shape[axis:])
