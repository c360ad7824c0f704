"""Dense attention in plain JAX, and the tolerance that results are held to.

The truth is the dense computation in float64. The tolerance follows from the error of the same computation in the call's own dtype: twice
that, plus some units in the last place of that dtype.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

ROUNDING_BAND = 8  # units in the last place of the largest element


def attention_and_lse(q, k, v, score_mod=None, mask_mod=None, *, scale=None, layout="BSHD"):
    """(o, lse). Sums are in float32, or in float64 for float64 arrays; probabilities are rounded to the dtype of v."""
    wide = jnp.promote_types(q.dtype, jnp.float32)
    q, k, v = (_to_bhsd(x, layout) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = jnp.repeat(k, group, axis=1), jnp.repeat(v, group, axis=1)
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k, preferred_element_type=wide)
    scores = scores * (1 / np.sqrt(q.shape[-1]) if scale is None else scale)
    if score_mod is not None:
        scores = over_scores(score_mod, scores.shape)(scores, *grid(scores.shape)).astype(wide)
    if mask_mod is not None:
        scores = jnp.where(over_scores(mask_mod, scores.shape)(*grid(scores.shape)), scores, -jnp.inf)
    top = jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True))
    top = jnp.where(jnp.isneginf(top), 0, top)  # a row without a kept key
    weights = jnp.exp(scores - top)
    total = weights.sum(axis=-1, keepdims=True)
    p = weights / jnp.where(total == 0, 1, total)
    o = jnp.einsum("bhqk,bhkd->bhqd", p.astype(v.dtype), v, preferred_element_type=wide).astype(v.dtype)
    lse = jnp.where(total == 0, -jnp.inf, jnp.log(jnp.where(total == 0, 1, total)) + top)
    return _from_bhsd(o, layout), lse[..., 0]


def attention(*args, **kwargs):
    return attention_and_lse(*args, **kwargs)[0]


def grid(shape):
    """b, h, q_idx and kv_idx of every score."""
    return jnp.meshgrid(*(jnp.arange(n, dtype=jnp.int32) for n in shape), indexing="ij")


def over_scores(function, shape):
    """A function of scalars as one of arrays of this shape."""
    flat = jax.vmap(function)
    return lambda *arrays: flat(*(x.ravel() for x in arrays)).reshape(shape)


def in_float64(function, *arrays):
    """function(*arrays) with every float array, and all that is computed, in float64."""
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, jax.jit(function)(*jax.tree.map(_widen, arrays)))


def assert_close(result, plain, truth, captured=0, scores=1, common_scale=False, largest_lse=0.0):
    """Trees of arrays, the output first: what is tested, the dense computation in the same dtype, and the one in float64.

    The last `captured` arrays are gradients of captured arrays. Each of their elements is a sum over its share of `scores` terms, whose
    rounding errors add up as the square root of their number.
    common_scale: rounding is in units of the largest element of all arrays, for problems so small that terms cancel and a gradient is 0.
    largest_lse: the largest magnitude of the problem's LSE. Rounding a score or an LSE of that size is a relative error of each weight.
    """
    result, plain, truth = (jax.tree.leaves(tree) for tree in (result, plain, truth))
    assert len(result) == len(plain) == len(truth)
    ulp = float(jnp.finfo(result[0].dtype).eps)
    for i, each in enumerate(zip(result, plain, truth)):
        terms = max(1, scores / each[0].size) if i >= len(result) - captured else 1
        scale = max(map(_largest_finite, truth)) if common_scale else _largest_finite(each[2])
        _assert_one_close(f"output {i}", (ROUNDING_BAND * terms**0.5 + 2 * largest_lse) * ulp * scale, *each)


def _assert_one_close(name, band, result, plain, truth):
    assert result.dtype == plain.dtype and result.shape == plain.shape, (name, result.dtype, result.shape, plain.shape)
    result, plain = np.asarray(result, np.float64), np.asarray(plain, np.float64)
    np.testing.assert_array_equal(np.isneginf(result), np.isneginf(truth), err_msg=name)
    finite = ~np.isneginf(truth)
    allowed = 2 * _largest(plain[finite] - truth[finite]) + band
    error = _largest(result[finite] - truth[finite])
    assert error <= allowed, f"{name}: {error} > {allowed}"


def _largest(array):
    return np.max(np.abs(array), initial=0.0)


def _largest_finite(array):
    return _largest(array[np.isfinite(array)])


def _widen(array):
    array = np.asarray(array)
    return jnp.asarray(array, jnp.float64) if jnp.issubdtype(array.dtype, jnp.floating) else jnp.asarray(array)


def _to_bhsd(array, layout):
    return jnp.transpose(array, [layout.index(letter) for letter in "BHSD"])


def _from_bhsd(array, layout):
    return jnp.transpose(array, ["BHSD".index(letter) for letter in layout])


@functools.cache
def random_array(seed, shape, dtype=jnp.float32):
    return jax.random.normal(jax.random.key(seed), shape, jnp.float32).astype(dtype)
