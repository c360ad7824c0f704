"""Arrays of eight bits: query, key and value as float8_e4m3fn or float8_e5m2, each with the factor that makes it the numbers that it stands for.

The factors are arrays of the call after its operands and keys of dropout, in the order of docs/problem.md: descale_q, descale_k, descale_v, and
scale_o where the output is of eight bits, too. Whoever differentiates takes them for constants.
"""

import numbers

import jax
import jax.numpy as jnp
import numpy as np

from scoremod.errors import InvalidArgumentError, UnsupportedError

FLOAT8 = {jnp.dtype(jnp.float8_e4m3fn): "e4m3", jnp.dtype(jnp.float8_e5m2): "e5m2"}
_OUTPUTS = {jnp.dtype(jnp.float32): "f32", jnp.dtype(jnp.float16): "f16", jnp.dtype(jnp.bfloat16): "bf16", **FLOAT8}


def is_float8(array):
    return jnp.dtype(array.dtype) in FLOAT8


def output_dtype(call, q):
    """That of the output of a call with this query."""
    return q.dtype if call.dtype_o is None else next(dtype for dtype, name in _OUTPUTS.items() if name == call.dtype_o)


def checked_factors(query, descales, scale_o, out_dtype, return_amax_o):
    """(factors, name of the output's dtype): what a call of these arguments has of them; ([], None) where query isn't of eight bits."""
    given = {**descales, "scale_o": scale_o, "out_dtype": out_dtype, "return_amax_o": return_amax_o or None}
    if not is_float8(query):
        for name, value in given.items():
            if value is not None:
                raise InvalidArgumentError(
                    f"{name}: expected none beside a query of {query.dtype}, found one; it goes with query, key and value of float8_e4m3fn or float8_e5m2"
                )
        return [], None
    out = jnp.dtype(jnp.bfloat16 if out_dtype is None else out_dtype)
    if out not in _OUTPUTS:
        raise InvalidArgumentError(f"out_dtype: expected one of {', '.join(map(str, _OUTPUTS))}, found {out}")
    if (out in FLOAT8) != (scale_o is not None):
        found = "none" if scale_o is None else "one"
        raise InvalidArgumentError(f"scale_o: expected one with an out_dtype of eight bits, and with no other; found {found} and {out}")
    factors = [_factor(name, 1.0 if value is None else value) for name, value in descales.items()]
    return factors + ([_factor("scale_o", scale_o)] if scale_o is not None else []), _OUTPUTS[out]


def _factor(name, value):
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        if not 0 < value <= np.finfo(np.float32).max:
            raise InvalidArgumentError(f"{name}: expected a positive finite number, found {value!r}")
        return jnp.float32(value)
    is_array = isinstance(value, (jax.Array, np.ndarray, np.generic)) and jnp.issubdtype(value.dtype, jnp.floating)
    if not is_array or np.size(value) != 1:
        raise InvalidArgumentError(f"{name}: expected a positive number or a float array of one element, found {value!r}")
    return jax.lax.stop_gradient(jnp.asarray(value, jnp.float32).reshape(()))


def refuse_gradients(call, q, k, v):
    """Raises UnsupportedError where a derivative was asked of what has none; q, k and v as custom_vjp's rules get them."""
    if not call.factors:
        return
    for name, tensor in (("query", q), ("key", k), ("value", v)):
        if tensor.perturbed:
            raise UnsupportedError(
                f"{name}: expected no derivative with respect to an array of eight bits, whose gradient would have to be of its dtype; found one asked "
                "for. Differentiate with respect to what it was made of with a rule of your own, and compute its gradient with scoremod.Attention "
                '("dtype_gradients")'
            )
    if call.dtype_o in FLOAT8.values():
        raise UnsupportedError("out_dtype: expected 16 bits or more of an output that is differentiated, found eight")


def refuse_lse_gradient(call):
    if call.factors:
        raise UnsupportedError("return_lse: expected no derivative of the LSE, or of a sink, where query is of eight bits; found one asked for")
