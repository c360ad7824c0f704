"""Arrays of functions that have derivatives in reverse mode only. Forward mode raises scoremod's error with the remedy, as soon as JAX asks
for it: at the call, while it traces, or when it compiles.

For JAX a tangent is first a value of the forward mode, and reverse mode is its transpose. So reverse_mode_only() is the identity on an array,
and on its tangent an operation whose transpose is the identity and which can't be computed.
"""

import functools

import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from scoremod.errors import UnsupportedError

_array_p = Primitive("scoremod_reverse_mode_only")
_tangent_p = Primitive("scoremod_tangent_of_reverse_mode_only")


def reverse_mode_only(what, *arrays):
    """The arrays. `what`, such as "flex_attention", is what the error names when one is differentiated in forward mode."""
    return tuple(_array_p.bind(x, what=what) if jnp.issubdtype(x.dtype, jnp.floating) else x for x in arrays)


def _jvp(primals, tangents, *, what):
    (array,), (tangent,) = primals, tangents
    if not isinstance(tangent, ad.Zero):
        tangent = _tangent_p.bind(tangent, what=what)
    return _array_p.bind(array, what=what), tangent


def _refuse(*_, what, **__):
    raise UnsupportedError(
        f"cannot differentiate {what} in forward mode (jax.jvp, jax.jacfwd, the function that jax.linearize returns, jax.hessian): scoremod "
        'has derivatives in reverse mode (jax.grad, jax.vjp, jax.jacrev) only; backend="xla" has both'
    )


def _batch(primitive, arrays, dims, *, what):
    return primitive.bind(*arrays, what=what), dims[0]


for _primitive in (_array_p, _tangent_p):
    _primitive.def_abstract_eval(lambda aval, *, what: aval)
    batching.primitive_batchers[_primitive] = functools.partial(_batch, _primitive)
_array_p.def_impl(lambda array, *, what: array)
_tangent_p.def_impl(_refuse)
mlir.register_lowering(_array_p, lambda context, array, *, what: [array])
mlir.register_lowering(_tangent_p, _refuse)
ad.primitive_jvps[_array_p] = _jvp
ad.deflinear2(_tangent_p, lambda cotangent, tangent, *, what: [cotangent])
