"""Attention as a composition of XLA operations: any score function, any dtype and device, memory linear in the sequence length.

Forward is an online softmax over blocks of keys. Backward goes over the blocks again and differentiates the user's function with jax.vjp,
so that custom rules and higher derivatives (in reverse mode) are JAX's own.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from scoremod.errors import UnsupportedError
from scoremod.jax.call import split_scale
from scoremod.jax.explicit_axes import explicit_axes
from scoremod.jax.jaxprs import without_arrays
from scoremod.jax.manual_axes import vary_alike, vary_as, varying_axes
from scoremod.jax.trace import jaxpr_of

# Keys that are looked at together: one block of scores is [batch, heads, seq_q, this].
_BLOCK = 256


class _Functions(NamedTuple):
    """The user's functions as jaxprs; the arrays that they capture travel beside them."""

    score_mod: core.Jaxpr | None
    mask_mod: core.Jaxpr | None
    score_array_count: int


def xla_attention(q, k, v, score_mod, mask_mod, *, scale, layout):
    """(o, lse) of arrays in a layout; scale is a number or a scalar array."""
    if explicit_axes(q):
        raise UnsupportedError(
            "backend=\"xla\": expected arrays on no mesh or on one with automatic axes, found explicit axes "
            f"{explicit_axes(q)}; call it in a function that jax.sharding.auto_axes wraps, which takes the captured arrays as arguments, too"
        )
    order = [layout.index(letter) for letter in "BHSD"]
    q, k, v = (jnp.transpose(x, order) for x in (q, k, v))
    number, array = split_scale(1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    scale = jnp.float32(number) if array is None else array
    named = {name: function for name, function in (("score_mod", score_mod), ("mask_mod", mask_mod)) if function is not None}
    jaxprs, arrays = _traced(named)
    q, k, v, scale = vary_alike([q, k, v, scale, *arrays])[:4]
    if varying_axes(q):
        jaxprs, arrays = _traced(named, like=q)
    score, mask = (jaxprs.get(name) for name in ("score_mod", "mask_mod"))
    functions = _Functions(
        *(None if jaxpr is None else without_arrays(jaxpr) for jaxpr in (score, mask)), 0 if score is None else len(score.consts)
    )
    o, top, total = _attention(functions, q, k, v, scale, arrays)
    lse = jnp.where(total > 0, jnp.log(_nonzero(total)) + top, -jnp.inf)
    return jnp.transpose(o, ["BHSD".index(letter) for letter in layout]), lse


def _traced(named, like=None):
    """({name: jaxpr}, arrays that they capture), traced with scores and indices that vary over a mesh as `like` does."""
    jaxprs = {name: jaxpr_of(name, function, like) for name, function in named.items()}
    return jaxprs, [jnp.asarray(array) for jaxpr in jaxprs.values() for array in jaxpr.consts]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(functions, q, k, v, scale, arrays):
    """(o, top, total): each row's largest score and its sum of exp(score - top). Their log-sum-exp alone would not do for the backward
    pass: where all scores are near -1e9, which some write for -inf, it has no digit of log(total) left.

    For derivatives top is a constant: neither o nor the log-sum-exp depends on what is subtracted.
    """
    state = (jnp.full(q.shape[:3], -jnp.inf), jnp.zeros(q.shape[:3]), jnp.zeros((*q.shape[:3], v.shape[-1])))

    def step(state, first, k, v):
        top, total, sums = state
        scores = _scores(functions, q, k, scale, arrays, first)
        new_top = jnp.maximum(top, jnp.max(scores, axis=-1))
        shift = _finite(new_top)
        p = jnp.exp(scores - shift[..., None])
        old = jnp.exp(top - shift)
        sums = sums * old[..., None] + _over_keys(p.astype(v.dtype), v)
        return (new_top, total * old + p.sum(axis=-1), sums), None

    (top, total, sums), _ = _over_blocks(step, tuple(vary_as(x, q) for x in state), k, v)
    return (sums / _nonzero(total)[..., None]).astype(q.dtype), top, total


def _finite(top):
    """top, and 0 for rows without a kept key."""
    return jnp.where(jnp.isneginf(top), 0, top)


def _nonzero(total):
    return jnp.where(total > 0, total, 1)


def _forward_rule(functions, q, k, v, scale, arrays):
    results = _attention(functions, q, k, v, scale, arrays)
    return results, (q, k, v, scale, arrays, *results)


def _backward_rule(functions, kept, upstream):
    q, k, v, scale, arrays, o, top, total = kept
    d_o, _, d_total = upstream
    # What softmax's derivative takes from each row.
    row = d_total * total - jnp.sum(d_o.astype(jnp.float32) * o.astype(jnp.float32), axis=-1)
    floats = [i for i, array in enumerate(arrays) if jnp.issubdtype(array.dtype, jnp.floating)]
    shift, divisor = _finite(top), _nonzero(total)

    def step(sums, first, k, v):
        def scores_of(q, k, scale, chosen):
            given = list(arrays)
            for i, array in zip(floats, chosen):
                given[i] = array
            return _scores(functions, q, k, scale, given, first)

        scores, pull_back = jax.vjp(scores_of, q, k, scale, [arrays[i] for i in floats])
        p = jnp.exp(scores - shift[..., None]) / divisor[..., None]
        d_p = _scores_of_product(d_o, v)
        d_q, d_k, d_scale, d_arrays = pull_back(jnp.where(jnp.isneginf(scores), 0, p * (d_p + row[..., None])))
        d_v = _over_queries(p.astype(d_o.dtype), d_o, v)
        sums = jax.tree.map(lambda sum, x: sum + x.astype(sum.dtype), sums, (d_q, d_scale, d_arrays))
        return sums, (d_k, d_v)

    zeros = jax.tree.map(lambda x: vary_as(jnp.zeros(x.shape, jnp.float32), x), (q, scale, [arrays[i] for i in floats]))
    (d_q, d_scale, d_floats), (d_k, d_v) = _over_blocks(step, zeros, k, v)
    d_arrays = [None] * len(arrays)
    for i, gradient in zip(floats, d_floats):
        d_arrays[i] = gradient.astype(arrays[i].dtype)
    return d_q.astype(q.dtype), d_k, d_v, d_scale, d_arrays


_attention.defvjp(_forward_rule, _backward_rule)


def _over_blocks(step, state, k, v):
    """step(state, first key, keys, values) -> (state, outputs) over blocks of keys; outputs' key dimensions are joined again."""
    count, rest = divmod(k.shape[2], _BLOCK)

    def body(state, block):
        first = block * _BLOCK
        return step(state, first, *(lax.dynamic_slice_in_dim(x, first, _BLOCK, axis=2) for x in (k, v)))

    parts = []
    if count:
        state, outputs = lax.scan(body, state, jnp.arange(count, dtype=jnp.int32))
        # [block, batch, heads, keys of a block, dim]
        join = lambda x: jnp.moveaxis(x, 0, 2).reshape(*x.shape[1:3], count * _BLOCK, x.shape[-1])  # noqa: E731
        parts.append(jax.tree.map(join, outputs))
    if rest:
        state, outputs = step(state, jnp.int32(count * _BLOCK), k[:, :, count * _BLOCK :], v[:, :, count * _BLOCK :])
        parts.append(outputs)
    return state, jax.tree.map(lambda *x: jnp.concatenate(x, axis=2), *parts)


def _scores(functions, q, k, scale, arrays, first):
    """The modified scores of all queries with a block of keys, -inf where a key isn't kept."""
    scores = _scores_of_product(q, k) * scale
    indices = [jnp.arange(n, dtype=jnp.int32) for n in scores.shape]
    indices[3] = indices[3] + first
    indices = [vary_as(index, q) for index in indices]
    count = functions.score_array_count
    if functions.score_mod is not None:
        scores = _over_scores(functions.score_mod, arrays[:count])(scores, *indices)
    if functions.mask_mod is not None:
        keep = _over_scores(functions.mask_mod, arrays[count:])(*indices)
        scores = jnp.where(keep, scores, -jnp.inf)
    return scores


def _over_scores(jaxpr, constants):
    """A function of one score's scalars, its arguments the four vectors of indices, and before them all scores if it takes them."""
    jaxpr = core.ClosedJaxpr(jaxpr, constants)
    scalar = core.jaxpr_as_fun(jaxpr)
    with_score = len(jaxpr.in_avals) == 5
    function = lambda *arguments: scalar(*arguments)[0]  # noqa: E731
    for axis in reversed(range(4)):
        own = [0 if i == axis else None for i in range(4)]
        function = jax.vmap(function, in_axes=[0, *own] if with_score else own)
    return function


def _scores_of_product(rows, keys):
    """[b, h, q, d] and [b, h or fewer, k, d] -> float32 [b, h, q, k]."""
    grouped = rows.reshape(rows.shape[0], keys.shape[1], -1, *rows.shape[2:])
    product = jnp.einsum("bngqd,bnkd->bngqk", grouped, keys, preferred_element_type=jnp.float32)
    return product.reshape(*rows.shape[:3], keys.shape[2])


def _over_keys(p, v):
    """[b, h, q, k] and [b, h or fewer, k, d] -> float32 [b, h, q, d]."""
    grouped = p.reshape(p.shape[0], v.shape[1], -1, *p.shape[2:])
    product = jnp.einsum("bngqk,bnkd->bngqd", grouped, v, preferred_element_type=jnp.float32)
    return product.reshape(*p.shape[:3], v.shape[-1])


def _over_queries(p, d_o, v):
    """The gradient of v: each of its heads sums over the query heads that read it."""
    grouped = p.reshape(p.shape[0], v.shape[1], -1, *p.shape[2:])
    d_o = d_o.reshape(*grouped.shape[:4], d_o.shape[-1])
    return jnp.einsum("bngqk,bngqd->bnkd", grouped, d_o, preferred_element_type=jnp.float32).astype(v.dtype)
