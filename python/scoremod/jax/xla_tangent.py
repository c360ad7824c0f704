"""The derivative of xla_attention in both modes: a linear operation. Forward mode computes it in one pass over the keys, and reverse mode
uses a transpose that is written by hand.

Left to JAX, the transpose of a loop over blocks of keys would keep every block's probabilities, which are all of [seq_q, seq_kv].
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

tangent_p = Primitive("scoremod_xla_attention_tangent")
tangent_p.multiple_results = True


class Linear(NamedTuple):
    """A function of tangents, linear in them, around a point.

    forward(point, tangents): lists of arrays -> the list of the results' tangents.
    transpose(point, cotangents, wanted): the cotangents of those tangents whose numbers are in `wanted`.
    result_numbers: which arrays of the point have the results' shapes and dtypes.
    """

    forward: object
    transpose: object
    result_numbers: tuple


def apply(linear, point, tangents):
    """linear.forward(point, tangents). JAX may differentiate and transpose it; both, again and again."""
    return tangent_p.bind(*point, *tangents, linear=linear, count=len(point), mapped=())


def _over_mapped(function, mapped):
    """A function(point, vectors) with a jax.vmap for each entry of `mapped`, which says which arrays of the point have its axis, the first;
    vectors and results all have it."""
    for flags in mapped:
        function = jax.vmap(function, in_axes=([0 if flag else None for flag in flags], 0))
    return function


def _compute(*arrays, linear, count, mapped):
    return _over_mapped(linear.forward, mapped)(list(arrays[:count]), list(arrays[count:]))


def _avals(*arrays, linear, count, mapped):
    return [arrays[number] for number in linear.result_numbers]


def _jvp(primals, tangents, *, linear, count, mapped):
    function = functools.partial(_compute, linear=linear, count=count, mapped=mapped)
    return jax.jvp(function, tuple(primals), tuple(_instantiated(x, tangent) for x, tangent in zip(primals, tangents)))


def _instantiated(primal, tangent):
    if jnp.issubdtype(primal.dtype, jnp.inexact):
        return ad.instantiate_zeros(tangent)
    return np.zeros(primal.shape, jax.dtypes.float0)


def _transpose(cotangents, *arrays, linear, count, mapped):
    point, vectors = list(arrays[:count]), arrays[count:]
    wanted = tuple(i for i, vector in enumerate(vectors) if ad.is_undefined_primal(vector))
    cotangents = [ad.instantiate_zeros(cotangent) for cotangent in cotangents]
    function = functools.partial(linear.transpose, wanted=wanted)
    found = dict(zip(wanted, _over_mapped(function, mapped)(point, cotangents), strict=True))
    return [None] * count + [found.get(i) for i in range(len(vectors))]


def _batch(arrays, dims, *, linear, count, mapped):
    size = next(array.shape[dim] for array, dim in zip(arrays, dims) if dim is not None)
    # The results' shapes are read off the point, so those arrays are mapped as the tangents are.
    whole = [i >= count or i in linear.result_numbers for i in range(len(arrays))]
    flags = [dim is not None or each for dim, each in zip(dims, whole)]
    arrays = [_mapped_first(array, dim, size) if flag else array for array, dim, flag in zip(arrays, dims, flags)]
    results = tangent_p.bind(*arrays, linear=linear, count=count, mapped=(*mapped, tuple(flags[:count])))
    return results, [0] * len(results)


def _mapped_first(array, dim, size):
    return jnp.broadcast_to(array, (size, *array.shape)) if dim is None else jnp.moveaxis(array, dim, 0)


tangent_p.def_impl(_compute)
tangent_p.def_abstract_eval(_avals)
mlir.register_lowering(tangent_p, mlir.lower_fun(_compute, multiple_results=True))
ad.primitive_jvps[tangent_p] = _jvp
ad.primitive_transposes[tangent_p] = _transpose
batching.primitive_batchers[tangent_p] = _batch
