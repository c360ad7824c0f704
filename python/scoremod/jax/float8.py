"""FP8 arrays: query, key and value as float8_e4m3fn or float8_e5m2, each with a descale factor: value = stored * descale.

The factors are arrays of the call after its operands and dropout keys: descale_q, descale_k, descale_v, and scale_o with an FP8 output, as in
docs/reference/problem.md. Derivatives take them for constants. The factors of the gradients come last, and the problem has none of them: its backward
reads and writes gradients of the descaled values, in bfloat16.
"""

import numbers

import jax
import jax.numpy as jnp
import numpy as np

from scoremod.errors import InvalidArgumentError, UnsupportedError
from scoremod.jax.call import GRADIENT_FACTORS

FLOAT8 = {jnp.dtype(jnp.float8_e4m3fn): "e4m3", jnp.dtype(jnp.float8_e5m2): "e5m2"}
_OUTPUTS = {jnp.dtype(jnp.float32): "f32", jnp.dtype(jnp.float16): "f16", jnp.dtype(jnp.bfloat16): "bf16", **FLOAT8}


def is_float8(array):
    return jnp.dtype(array.dtype) in FLOAT8


def output_dtype(call, q):
    """The dtype of the output of a call with this query."""
    return q.dtype if call.dtype_o is None else next(dtype for dtype, name in _OUTPUTS.items() if name == call.dtype_o)


def checked_factors(query, descales, scale_o, gradient_scales, out_dtype, return_amax_o):
    """(factors, name of the output's dtype) of a call's arguments, the gradients' factors last; ([], None) where query isn't FP8.

    gradient_scales: GRADIENT_FACTORS by name."""
    given = {**descales, "scale_o": scale_o, **gradient_scales, "out_dtype": out_dtype, "return_amax_o": return_amax_o or None}
    if not is_float8(query):
        for name, value in given.items():
            if value is not None:
                raise InvalidArgumentError(
                    f"{name}: expected none beside a query of {query.dtype}, found one; it goes with query, key and value of float8_e4m3fn or float8_e5m2"
                )
        return [], None
    try:
        out = jnp.dtype(jnp.bfloat16 if out_dtype is None else out_dtype)
    except TypeError:
        out = None
    if out not in _OUTPUTS:
        raise InvalidArgumentError(f"out_dtype: expected one of {', '.join(map(str, _OUTPUTS))}, found {out_dtype!r}")
    if (out in FLOAT8) != (scale_o is not None):
        found = "none" if scale_o is None else "one"
        raise InvalidArgumentError(f"scale_o: expected one with an FP8 out_dtype and none with another, found {found} with {out}")
    if gradient_scales["descale_d_o"] is not None and out not in FLOAT8:
        raise InvalidArgumentError(f"descale_d_o: expected none unless out_dtype is FP8, found one with {out}; leave it out")
    factors = {name: 1.0 if value is None else value for name, value in {**descales, "scale_o": scale_o}.items()}
    # By default the gradients are derivatives by the stored numbers.
    of_gradients = zip(gradient_scales.items(), factors.values(), strict=True)
    factors |= {name: default if value is None else value for (name, value), default in of_gradients}
    if out not in FLOAT8:
        factors.pop("scale_o")
    return [_factor(name, value) for name, value in factors.items()], _OUTPUTS[out]  # pyright: ignore[reportArgumentType]


def counts(factors):
    """How many of a call's factors its problem binds, and how many are its gradients'."""
    of_gradients = len(GRADIENT_FACTORS) if factors else 0
    return len(factors) - of_gradients, of_gradients


def _factor(name, value):
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        if not 0 < value <= np.finfo(np.float32).max:  # pyright: ignore[reportOperatorIssue]
            raise InvalidArgumentError(f"{name}: expected a positive finite number, found {value!r}")
        return jnp.float32(value)
    is_array = isinstance(value, (jax.Array, np.ndarray, np.generic)) and jnp.issubdtype(value.dtype, jnp.floating)
    if not is_array or np.size(value) != 1:
        raise InvalidArgumentError(f"{name}: expected a positive number or a float array of one element, found {value!r}")
    return jax.lax.stop_gradient(jnp.asarray(value, jnp.float32).reshape(()))


def split_gradient_factors(call, operands):
    """(the call as the problem knows it, its operands, {name: factor} of what its gradients have)."""
    count = len(operands) - call.gradient_factors
    return call._replace(gradient_factors=0), operands[:count], dict(zip(GRADIENT_FACTORS, operands[count:]))


def gradient_of_numbers(call, d_o):
    """d_o of an FP8 output as the backward reads it. Its descale_d_o is applied to the gradients instead, which are proportional to it."""
    return d_o.astype(jnp.bfloat16) if call.dtype_o in FLOAT8.values() else d_o


def gradients_of_arrays(call, arrays, gradients, operand_gradients, factors):
    """The gradients of query, key and value, each in its array's dtype, and of operands, from those that the backward computed."""
    upstream = factors["descale_d_o"] if call.dtype_o in FLOAT8.values() else jnp.float32(1)
    scaled = [x.astype(jnp.float32) * (upstream * factors[name]) for x, name in zip(gradients, GRADIENT_FACTORS)]
    operand_gradients = [(x.astype(jnp.float32) * upstream).astype(x.dtype) for x in operand_gradients]
    return [_saturated(x, array.dtype) for x, array in zip(scaled, arrays)], operand_gradients


def _saturated(x, dtype):
    """x in a dtype, saturated at its largest number; NaN stays."""
    largest = float(jnp.finfo(dtype).max)
    return jnp.clip(x, -largest, largest).astype(dtype)


def refuse_lse_gradient(call):
    if call.dtype_o in FLOAT8.values():
        raise UnsupportedError(
            "return_lse: cannot differentiate the LSE of a call with an FP8 output: expected an out_dtype of 16 bits or more for it, found "
            f"{call.dtype_o}. Set out_dtype=jnp.bfloat16, or don't differentiate the LSE"
        )
