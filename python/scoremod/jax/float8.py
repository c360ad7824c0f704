"""FP8 arrays: query, key and value as float8_e4m3fn or float8_e5m2, or key and value alone, each with a descale factor: value = stored * descale.
A descale may have block scales, one for each block of the array's elements.

The factors are arrays of the call after its operands and dropout keys: descale_q, descale_k, descale_v, and scale_o with an FP8 output, as in
docs/reference/problem.md. Derivatives take them for constants. The factors of the gradients come last, and the problem has none of them: its backward
reads and writes gradients of the descaled values, in bfloat16.

With key and value alone in FP8, a KV cache, descale_k and descale_v are the only factors, one for each KV head, and nothing has gradients.
"""

import jax
import jax.numpy as jnp
import numpy as np

from scoremod.errors import InvalidArgumentError, UnsupportedError
from scoremod.float8_factors import (
    OF_CACHE,
    SCALE_BLOCK,
    are_block_scales,
    cache_gradient,
    check_cache_factor,
    check_factors_fit,
    check_output_factor,
    is_number,
    wrong_factor,
    wrong_output,
)
from scoremod.jax.call import GRADIENT_FACTORS

FLOAT8 = {jnp.dtype(jnp.float8_e4m3fn): "e4m3", jnp.dtype(jnp.float8_e5m2): "e5m2"}
_OUTPUTS = {jnp.dtype(jnp.float32): "f32", jnp.dtype(jnp.float16): "f16", jnp.dtype(jnp.bfloat16): "bf16", **FLOAT8}


def is_float8(array):
    return jnp.dtype(array.dtype) in FLOAT8


def output_dtype(call, q):
    """The dtype of the output of a call with this query."""
    return q.dtype if call.dtype_o is None else next(dtype for dtype, name in _OUTPUTS.items() if name == call.dtype_o)


def cache_dtype(query, key):
    """The name of the dtype of an FP8 KV cache under a query of more bits; None for other arrays."""
    return FLOAT8[jnp.dtype(key.dtype)] if is_float8(key) and not is_float8(query) else None


def checked_factors(query, tensors, descales, scale_o, gradient_scales, out_dtype, return_amax_o, cache_heads=None):
    """(factors, name of the output's dtype, block_letters()) of a call's arguments, the gradients' factors last; ([], None, "") where neither query nor
    key is FP8.

    tensors: what descales scale, (layout, shape) by their names. gradient_scales: GRADIENT_FACTORS by name. cache_heads: the KV heads of an FP8 cache;
    None where key and value are none."""
    given = {**descales, "scale_o": scale_o, **gradient_scales, "out_dtype": out_dtype, "return_amax_o": return_amax_o or None}
    if not is_float8(query):
        of_cache = () if cache_heads is None else OF_CACHE
        check_factors_fit(query.dtype, given, of_cache)
        factors = {name: factor_of_heads(name, given[name], cache_heads, tensors[name]) for name in of_cache}
        return [_bound(factor, *tensors[name]) for name, factor in factors.items()], None, block_letters(factors, tensors)
    try:
        out = jnp.dtype(jnp.bfloat16 if out_dtype is None else out_dtype)
    except TypeError:
        out = None
    if out not in _OUTPUTS:
        raise wrong_output(out_dtype)
    check_output_factor(scale_o, out, out in FLOAT8)
    if gradient_scales["descale_d_o"] is not None and out not in FLOAT8:
        raise InvalidArgumentError(f"descale_d_o: expected none unless out_dtype is FP8, found one with {out}; leave it out")
    factors = {name: 1.0 if value is None else value for name, value in {**descales, "scale_o": scale_o}.items()}
    # By default the gradients are derivatives by the stored numbers.
    of_gradients = zip(gradient_scales.items(), factors.values(), strict=True)
    factors |= {name: default if value is None else value for (name, value), default in of_gradients}
    if out not in FLOAT8:
        factors.pop("scale_o")
    # By default a gradient has its tensor's factor.
    scaled = tensors | {f"scale_d{name[-1]}": tensors[name] for name in descales}
    factors = {name: _factor(name, value, blocks=scaled.get(name)) for name, value in factors.items()}
    bound = [_bound(factor, *tensors[name]) if name in tensors else factor for name, factor in factors.items()]
    return bound, _OUTPUTS[out], block_letters(factors, tensors)  # pyright: ignore[reportArgumentType]


def block_letters(factors, tensors):
    """Call.block_scales of factors: "name=letters" of each that is block scales, with commas between. They are those of the problem's order. A dimension has
    the letter that the tensor's layout has, if it is as long as the tensor's and can be sharded, and else "?". tensors: (layout, shape) by name."""
    letters = []
    for name, (layout, shape) in tensors.items():
        scales = factors[name].shape if name in factors else ()
        if len(scales) != len(shape):
            continue
        whole = {letter for letter, one, size in zip(layout, scales, shape) if one == size}
        letters.append(f"{name}={''.join(letter if letter in whole else '?' for letter in 'BHS')}?")
    return ",".join(letters)


def _bound(factor, layout, shape):
    """A factor as the problem has it: block scales in the order batch, heads, sequence, dim."""
    if factor.ndim == 0 or factor.ndim != len(shape):
        return factor
    if layout == "THD":
        return jnp.moveaxis(factor, 1, 0)[None]
    return jnp.transpose(factor, [layout.index(letter) for letter in "BHSD"])


def _of_elements(factor, shape):
    """A factor that multiplies an array of a shape: block scales once for each element of a block."""
    for axis in range(-factor.ndim, 0):
        if factor.shape[axis] not in (1, shape[axis]):
            factor = jnp.take(jnp.repeat(factor, SCALE_BLOCK, axis), jnp.arange(shape[axis]), axis)
    return factor


def counts(factors, dtype_kv=None):
    """How many of a call's factors its problem binds, and how many are its gradients', of which calls with an FP8 cache have none."""
    of_gradients = len(GRADIENT_FACTORS) if factors and dtype_kv is None else 0
    return len(factors) - of_gradients, of_gradients


def factor_of_heads(name, value, heads, blocks=None):
    """The factor of key or value in a cache, for each KV head: a mesh that divides heads divides it with them. Or the block scales of an array of
    `blocks`, its (layout, shape)."""
    check_cache_factor(name, value)
    is_list = isinstance(value, (jax.Array, np.ndarray)) and jnp.issubdtype(value.dtype, jnp.floating) and value.shape == (heads,)
    if is_list:
        return jax.lax.stop_gradient(jnp.asarray(value, jnp.float32))
    factor = _factor(name, value, heads, blocks)
    return factor if factor.ndim else jnp.broadcast_to(factor, (heads,))


def _factor(name, value, heads=None, blocks=None):
    if is_number(name, value):
        return jnp.float32(value)
    is_array = isinstance(value, (jax.Array, np.ndarray, np.generic)) and jnp.issubdtype(value.dtype, jnp.floating)
    has_blocks = is_array and blocks is not None and are_block_scales(value.shape, *blocks)
    if not is_array or (np.size(value) != 1 and not has_blocks):
        raise wrong_factor(name, value, heads, blocks if is_array else None)
    factor = jax.lax.stop_gradient(jnp.asarray(value, jnp.float32))
    return factor if has_blocks else factor.reshape(())


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
    scaled = [x.astype(jnp.float32) * (upstream * _of_elements(factors[name], x.shape)) for x, name in zip(gradients, GRADIENT_FACTORS)]
    operand_gradients = [(x.astype(jnp.float32) * upstream).astype(x.dtype) for x in operand_gradients]
    return [saturated(x, array.dtype) for x, array in zip(scaled, arrays)], operand_gradients


def saturated(x, dtype):
    """x in a dtype, saturated at its largest number; NaN stays."""
    largest = float(jnp.finfo(dtype).max)
    return jnp.clip(x, -largest, largest).astype(dtype)


def refuse_cache_gradients(query, key, value, operands):
    """Raises UnsupportedError, where a gradient was asked for of a call with an FP8 KV cache. The arguments say whether they are perturbed."""
    asked = [name for name, array in (("query", query), ("key", key), ("value", value)) if array.perturbed] or ["a captured array"]
    stopped = asked[0] if asked[0] in ("query", "key", "value") else "the array"
    raise cache_gradient(
        asked[0], f"Call it with jax.lax.stop_gradient({stopped}), or convert key and value: key.astype({query.value.dtype}), times its factor"
    )


def refuse_lse_gradient(call):
    if call.dtype_o in FLOAT8.values():
        raise UnsupportedError(
            "return_lse: cannot differentiate the LSE of a call with an FP8 output: expected an out_dtype of 16 bits or more for it, found "
            f"{call.dtype_o}. Set out_dtype=jnp.bfloat16, or don't differentiate the LSE"
        )
