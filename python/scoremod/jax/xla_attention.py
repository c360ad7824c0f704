"""Attention as a composition of XLA operations: any score function, any dtype and device, memory linear in the sequence length.

Forward is an online softmax over blocks of keys. Derivatives, in both modes, go over the blocks again and differentiate the user's function
with jax.jvp or jax.vjp, so that custom rules and higher derivatives are JAX's own.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jax.extend import core

from scoremod.errors import UnsupportedError
from scoremod.jax.dropout import shares, shares_at
from scoremod.jax.explicit_axes import explicit_axes
from scoremod.jax.jaxprs import without_arrays
from scoremod.jax.kept_results import named_results, second_name
from scoremod.jax.manual_axes import vary_alike, vary_as, varying_axes
from scoremod.jax.trace import jaxpr_of
from scoremod.jax.wide_captures import function_of, widened
from scoremod.jax.xla_tangent import Linear, apply

# Keys that are looked at together: one block of scores is [batch, heads, seq_q, this].
_BLOCK = 256


class _Functions(NamedTuple):
    """The user's functions as jaxprs; the arrays that they capture travel beside them."""

    score_mod: core.Jaxpr | None
    mask_mod: core.Jaxpr | None
    score_array_count: int
    dropout: float  # the rate; the last of the arrays are then what `shares` takes
    dropout_arrays: int  # how many: the call's keys, or before them where tokens are (scoremod.jax.dropout.shares_at)
    second_name: str | None  # of the results that a derivative keeps

    def shares(self, arrays, like, first):
        """The factors that dropout gives the weights `like` of a block of keys."""
        if not self.dropout:
            return 1.0
        if self.dropout_arrays == 1:
            return shares(arrays[-1], self.dropout, like.shape, first)
        *places, keys = arrays[-self.dropout_arrays :]
        return shares_at(keys, self.dropout, like.shape, first, *places)


def xla_attention(q, k, v, score_mod, mask_mod, *, scale, layout, dropout=(0.0, ())):
    """(o, lse, largest scores) of arrays in a layout; scale is a number, a float32 array of jax, or None. dropout: the rate, and a list of what
    decides which weights are dropped: the call's keys, and before them the three arrays of shares_at for tokens that are elsewhere."""
    if explicit_axes(q):
        raise UnsupportedError(
            'backend="xla": expected arrays on no mesh or on one with automatic axes, found explicit axes '
            f"{explicit_axes(q)}; call it in a function that jax.sharding.auto_axes wraps, which takes the captured arrays as arguments, too"
        )
    order = [layout.index(letter) for letter in "BHSD"]
    q, k, v = (jnp.transpose(x, order) for x in (q, k, v))
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    wide = _wide(q)
    scale = scale if isinstance(scale, jax.Array) else jnp.asarray(scale, wide)
    named = {name: function for name, function in (("score_mod", score_mod), ("mask_mod", mask_mod)) if function is not None}
    jaxprs, arrays = _traced(named, wide)
    q, k, v, scale = vary_alike([q, k, v, scale, *arrays])[:4]
    if varying_axes(q):
        jaxprs, arrays = _traced(named, wide, like=q)
    score, mask = (jaxprs.get(name) for name in ("score_mod", "mask_mod"))
    score_count = 0 if score is None else len(score.consts)
    traced = (None if jaxpr is None else without_arrays(jaxpr) for jaxpr in (score, mask))
    functions = _Functions(*traced, score_count, dropout[0], len(dropout[1]), second_name())  # pyright: ignore[reportCallIssue]
    arrays = [*arrays, *vary_alike([*dropout[1], q])[:-1]]
    # Inside jax.shard_map without jax.jit, JAX takes no rule that asks which tangents there are.
    compute = _attention_jitted if jax.sharding.get_abstract_mesh().manual_axes else _attention
    o, top, total = compute(functions, q, k, v, scale, arrays)
    lse = jnp.where(total == 0, -jnp.inf, jnp.log(_nonzero(total)) + top)
    return jnp.transpose(o, ["BHSD".index(letter) for letter in layout]), lse, lax.stop_gradient(top)


def _wide(q):
    """The dtype of scores and sums: float32, or float64 for such arrays."""
    return jnp.promote_types(q.dtype, jnp.float32)


def _traced(named, dtype, like=None):
    """({name: jaxpr}, arrays that they capture), traced with scores of a dtype, which vary over a mesh as `like` does, as indices do."""
    jaxprs = {name: jaxpr_of(name, function, like, dtype) for name, function in named.items()}
    return jaxprs, [jnp.asarray(array) for jaxpr in jaxprs.values() for array in jaxpr.consts]


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _attention(functions, q, k, v, scale, arrays):
    """(o, top, total): each row's largest score and its sum of exp(score - top). Their log-sum-exp alone would not do for the backward
    pass: where all scores are near -1e9, which some write for -inf, it has no digit of log(total) left.

    For derivatives top is a constant: neither o nor the log-sum-exp depends on what is subtracted.
    """
    rows, wide = q.shape[:3], _wide(q)
    state = (jnp.full(rows, -jnp.inf, wide), jnp.zeros(rows, wide), jnp.zeros((*rows, v.shape[-1]), wide))

    def step(state, first, k, v):
        top, total, sums = state
        scores = _scores(functions, q, k, scale, arrays, first)
        new_top = jnp.maximum(top, jnp.max(scores, axis=-1))
        shift = _finite(new_top)
        p = jnp.exp(scores - shift[..., None])
        old = jnp.exp(top - shift)
        left = p * functions.shares(arrays, p, first)
        sums = sums * old[..., None] + _over_keys(left.astype(v.dtype), v)
        return (new_top, total * old + p.sum(axis=-1), sums), None

    (top, total, sums), _ = _over_blocks(step, tuple(vary_as(x, q) for x in state), k, v)
    return (sums / _nonzero(total)[..., None]).astype(q.dtype), top, total


def _finite(top):
    """top, and 0 for rows without a kept key."""
    return jnp.where(jnp.isneginf(top), 0, top)


def _nonzero(total):
    """total, and 1 for rows without a kept key. NaN stays."""
    return jnp.where(total == 0, 1, total)


@functools.partial(_attention.defjvp, symbolic_zeros=True)
def _derivative(functions, primals, tangents):
    o, top, total = named_results(functions.second_name, *_attention(functions, *primals))
    *qkv_scale, arrays = primals
    *given, d_arrays = tangents
    given = [*given, *d_arrays]
    varied = tuple(i for i, x in enumerate(given) if not isinstance(x, SymbolicZero) and jnp.issubdtype(x.dtype, jnp.floating))
    linear = Linear(functools.partial(_tangents, functions, varied), functools.partial(_cotangents, functions, varied), (0, 2))
    d_o, d_total = apply(linear, [o, top, total, *qkv_scale, *arrays], [given[i] for i in varied])
    return (o, top, total), (d_o, jnp.zeros_like(top), d_total)


_attention_jitted = jax.jit(_attention, static_argnums=0)


def _score_function(functions, q, scale, arrays, chosen):
    """A function(first, q, k, scale, some of the arrays) of a block of keys, and those arrays: the ones whose numbers are in `chosen`."""

    def scores_of(first, q, k, scale, varied):
        given = list(arrays)
        for i, array in zip(chosen, varied):
            given[i] = array
        return _scores(functions, q, k, scale, given, first)

    return scores_of, [arrays[i] for i in chosen]


def _tangents(functions, varied, point, given):
    """The tangents of o and total in one pass. `varied`: which of q, k, v, scale and the arrays have those in `given`."""
    o, top, total, q, k, v, scale, *arrays = point
    tangents = dict(zip(varied, given))
    d_q, d_k, d_v, d_scale = (tangents.get(i, jnp.zeros_like(x)) for i, x in enumerate((q, k, v, scale)))
    chosen = [i - 4 for i in varied if i >= 4]
    scores_of, some = _score_function(functions, q, scale, arrays, chosen)
    shift, divisor = _finite(top), _nonzero(total)

    def step(state, first, k, v, d_k, d_v):
        row, sums = state
        scores, d_scores = jax.jvp(functools.partial(scores_of, first), (q, k, scale, some), (d_q, d_k, d_scale, [tangents[i + 4] for i in chosen]))
        p = jnp.exp(scores - shift[..., None]) / divisor[..., None]
        weighted = jnp.where(jnp.isneginf(scores), 0, p * d_scores)
        share = functions.shares(arrays, p, first)
        sums = sums + _over_keys((weighted * share).astype(v.dtype), v) + _over_keys((p * share).astype(v.dtype), d_v)
        return (row + weighted.sum(axis=-1), sums), None

    zeros = jnp.zeros(q.shape[:3], _wide(q)), jnp.zeros((*q.shape[:3], v.shape[-1]), _wide(q))
    # Left whole, what JAX would keep of each block for a further derivative is as large as all scores.
    (row, sums), _ = _over_blocks(jax.checkpoint(step), tuple(vary_as(x, q) for x in zeros), k, v, d_k, d_v)
    return [(sums - row[..., None] * o.astype(_wide(q))).astype(o.dtype), row * total]


def _cotangents(functions, varied, point, upstream, wanted):
    """The gradients of those of q, k, v, scale and the arrays that varied[i] says for each i in `wanted`, in one pass."""
    o, top, total, q, k, v, scale, *arrays = point
    d_o, d_total = upstream
    # The term that softmax's derivative subtracts from each row.
    row = d_total * total - jnp.sum(d_o.astype(_wide(q)) * o.astype(_wide(q)), axis=-1)
    scores_of, some = _score_function(functions, q, scale, arrays, [varied[i] - 4 for i in wanted if varied[i] >= 4])
    dtypes = [x.dtype for x in some]
    some = [widened(x, _wide(q)) for x in some]  # a block's sums of bfloat16 would stay where they are after some hundred terms
    shift, divisor = _finite(top), _nonzero(total)

    def step(sums, first, k, v):
        scores, pull_back = jax.vjp(functools.partial(scores_of, first), q, k, scale, some)
        p = jnp.exp(scores - shift[..., None]) / divisor[..., None]
        share = functions.shares(arrays, p, first)
        d_p = _scores_of_product(d_o, v) * share
        d_q, d_k, d_scale, d_some = pull_back(jnp.where(jnp.isneginf(scores), 0, p * (d_p + row[..., None])))
        d_v = _over_queries((p * share).astype(d_o.dtype), d_o, v)
        sums = jax.tree.map(lambda sum, x: sum + x.astype(sum.dtype), sums, (d_q, d_scale, d_some))
        return sums, (d_k, d_v)

    zeros = jax.tree.map(lambda x: vary_as(jnp.zeros(x.shape, _wide(x)), x), (q, scale, some))
    (d_q, d_scale, d_some), (d_k, d_v) = _over_blocks(step, zeros, k, v)
    first = {0: d_q.astype(q.dtype), 1: d_k, 2: d_v, 3: d_scale}
    rest = iter(d.astype(dtype) for d, dtype in zip(d_some, dtypes))
    return [first[varied[i]] if varied[i] < 4 else next(rest) for i in wanted]


def _over_blocks(step, state, *keyed):
    """step(state, first key, *blocks) -> (state, outputs) over blocks of the arrays `keyed`, along their keys; outputs' key dimensions are
    joined again."""
    count, rest = divmod(keyed[0].shape[2], _BLOCK)

    def body(state, block):
        first = block * _BLOCK
        return step(state, first, *(lax.dynamic_slice_in_dim(x, first, _BLOCK, axis=2) for x in keyed))

    parts = []
    if count:
        state, outputs = lax.scan(body, state, jnp.arange(count, dtype=jnp.int32))
        # [block, batch, heads, keys of a block, dim]
        join = lambda x: jnp.moveaxis(x, 0, 2).reshape(*x.shape[1:3], count * _BLOCK, x.shape[-1])  # noqa: E731
        parts.append(jax.tree.map(join, outputs))
    if rest:
        state, outputs = step(state, jnp.int32(count * _BLOCK), *(x[:, :, count * _BLOCK :] for x in keyed))
        parts.append(outputs)
    return state, jax.tree.map(lambda *x: jnp.concatenate(x, axis=2), *parts)


def _scores(functions, q, k, scale, arrays, first):
    """The modified scores of all queries with a block of keys, -inf where a key isn't kept."""
    scores = _scores_of_product(q, k) * scale
    indices = [jnp.arange(n, dtype=jnp.int32) for n in scores.shape]
    indices[3] = indices[3] + first
    indices = [vary_as(index, q) for index in indices]
    count, end = functions.score_array_count, len(arrays) - functions.dropout_arrays
    if functions.score_mod is not None:
        scores = _over_scores(functions.score_mod, arrays[:count])(scores, *indices)
    if functions.mask_mod is not None:
        keep = _over_scores(functions.mask_mod, arrays[count:end])(*indices)
        scores = jnp.where(keep, scores, -jnp.inf)
    return scores


def _over_scores(jaxpr, constants):
    """A function of one score's scalars, its arguments the four vectors of indices, and before them all scores if it takes them."""
    scalar = function_of(jaxpr, constants)
    with_score = len(core.ClosedJaxpr(jaxpr, constants).in_avals) == 5
    function = lambda *arguments: scalar(*arguments)[0]  # noqa: E731
    for axis in reversed(range(4)):
        own = [0 if i == axis else None for i in range(4)]
        function = jax.vmap(function, in_axes=[0, *own] if with_score else own)
    return function


def _scores_of_product(rows, keys):
    """[b, h, q, d] and [b, h or fewer, k, d] -> float32 (float64 of such) [b, h, q, k]."""
    grouped = rows.reshape(rows.shape[0], keys.shape[1], -1, *rows.shape[2:])
    product = jnp.einsum("bngqd,bnkd->bngqk", grouped, keys, preferred_element_type=_wide(rows))
    return product.reshape(*rows.shape[:3], keys.shape[2])


def _over_keys(p, v):
    """[b, h, q, k] and [b, h or fewer, k, d] -> float32 (float64 of such) [b, h, q, d]."""
    grouped = p.reshape(p.shape[0], v.shape[1], -1, *p.shape[2:])
    product = jnp.einsum("bngqk,bnkd->bngqd", grouped, v, preferred_element_type=_wide(v))
    return product.reshape(*p.shape[:3], v.shape[-1])


def _over_queries(p, d_o, v):
    """The gradient of v: each of its heads sums over the query heads that read it."""
    grouped = p.reshape(p.shape[0], v.shape[1], -1, *p.shape[2:])
    d_o = d_o.reshape(*grouped.shape[:4], d_o.shape[-1])
    return jnp.einsum("bngqk,bngqd->bnkd", grouped, d_o, preferred_element_type=_wide(v)).astype(v.dtype)
