"""Random score functions, shapes, dtypes and layouts against the dense computation, on the CPU backend and as XLA operations."""

import functools

import dense_reference as dense
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from scoremod.jax import flex_attention

# Smooth, and tame enough that rounding does not grow: scores stay below about 30.
_UNARY = [
    jnp.tanh,
    jnp.sin,
    jax.nn.sigmoid,
    jax.nn.silu,
    jax.nn.softplus,
    lambda x: x * 0.5,
    lambda x: 1 - x,
    lambda x: jnp.exp(-jnp.abs(x) / 8),
    lambda x: jnp.log1p(x * x),
    lambda x: jnp.where(x > 0.3, x, 0.25 * x),
    lambda x: jnp.clip(x, -4.0, 4.0),
]
_BINARY = [jnp.add, jnp.subtract, lambda x, y: x * jnp.tanh(y), jnp.maximum, lambda x, y: jnp.where(x < y, y, x)]


def _leaves(arrays, s_q, s_kv):
    """Functions of (score, b, h, q_idx, kv_idx); the arrays are [heads], [distances], [batch, keys]."""
    slopes, table, bias = arrays
    return [
        lambda score, b, h, q, k: score,
        lambda score, b, h, q, k: score,
        lambda score, b, h, q, k: slopes[h],
        lambda score, b, h, q, k: table[q - k + s_kv - 1],
        lambda score, b, h, q, k: bias[b, k],
        lambda score, b, h, q, k: (q - k) * 0.1,
        lambda score, b, h, q, k: jnp.where((q // 3 + k) % 2 == 0, 1.0, -0.5) * (b + h + 1),
    ]


# A function as a tree of numbers, so that what failed can be printed and made again.
_TREES = st.recursive(
    st.integers(0, 6),
    lambda inner: st.tuples(st.integers(0, len(_UNARY) - 1), inner) | st.tuples(st.integers(0, len(_BINARY) - 1), inner, inner),
    max_leaves=5,
)
_MASKS = [
    None,
    lambda b, h, q, k: q >= k,
    lambda b, h, q, k: jnp.abs(q - k) < 5 + h,
    lambda b, h, q, k: (q // 4 == k // 4) | (k < 2 + b),
]


def _function(tree, leaves):
    def evaluate(tree, arguments):
        if isinstance(tree, int):
            return leaves[tree](*arguments)
        op, *inner = tree
        return (_UNARY if len(inner) == 1 else _BINARY)[op](*(evaluate(each, arguments) for each in inner))

    # Always of the score, so that q and k have a gradient.
    return lambda score, *indices: score + evaluate(tree, (score, *indices))


# Each example compiles four programs: one that fails is printed as it is, not made smaller.
@settings(max_examples=8, deadline=None, derandomize=True, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(
    tree=_TREES,
    mask=st.sampled_from(range(len(_MASKS))),
    batch=st.integers(1, 2),
    heads=st.sampled_from([(1, 1), (4, 2), (3, 1)]),
    s_q=st.integers(1, 24),
    s_kv=st.integers(1, 24),
    dims=st.sampled_from([(8, 8), (16, 8), (5, 3)]),
    dtype=st.sampled_from(["float32", "float16", "bfloat16"]),
    layout=st.sampled_from(["BSHD", "SBHD", "BHSD"]),
    seed=st.integers(0, 1000),
)
def test_random_modifiers(tree, mask, batch, heads, s_q, s_kv, dims, dtype, layout, seed):
    case = _Case(tree, mask, batch, heads, s_q, s_kv, dims, dtype, layout, seed)
    for backend in ("cpu", "xla"):
        case.check(case.results(functools.partial(flex_attention, return_lse=True, backend=backend)))


def test_an_output_of_zeros_fails():
    # score + score * tanh(slopes[h]) + (table[...] + bias[b, k]), so that every array matters.
    case = _Case((0, (2, 0, 2), (0, 3, 4)), 1, 2, (4, 2), 12, 14, (16, 8), "float32", "BSHD", 5)
    right, tree = jax.tree.flatten(case.results(functools.partial(flex_attention, return_lse=True)))
    case.check(tree.unflatten(right))
    for i in range(len(right)):
        wrong = [jnp.zeros_like(x) if i == j else x for j, x in enumerate(right)]
        with pytest.raises(AssertionError, match=f"output {i}"):
            case.check(tree.unflatten(wrong))


class _Case:
    """One draw: its arrays, and what the dense computation makes of them."""

    def __init__(self, tree, mask, batch, heads, s_q, s_kv, dims, dtype, layout, seed):
        random = np.random.default_rng(seed)

        def array(*shape, of=dtype):
            return jnp.asarray(random.normal(size=shape), of)

        def tensor(sequence, heads, dim):
            return jnp.transpose(array(batch, heads, sequence, dim), ["BHSD".index(letter) for letter in layout])

        q, k, v = tensor(s_q, heads[0], dims[0]), tensor(s_kv, heads[1], dims[0]), tensor(s_kv, heads[1], dims[1])
        d_o = tensor(s_q, heads[0], dims[1])
        arrays = array(heads[0], of="float32"), array(s_q + s_kv - 1, of="float32"), array(batch, s_kv, of="float32")
        self._given = (d_o, q, k, v, *arrays)
        self._mods = lambda arrays: (_function(tree, _leaves(arrays, s_q, s_kv)), _MASKS[mask])
        self._layout, self._scores = layout, batch * heads[0] * s_q * s_kv
        self._plain = self.results(dense.attention_and_lse)
        self._truth = dense.in_float64(lambda *x: self._compute(dense.attention_and_lse, *x), *self._given)

    def results(self, attention):
        return jax.jit(functools.partial(self._compute, attention))(*self._given)

    def check(self, results):
        dense.assert_close(results, self._plain, self._truth, captured=3, scores=self._scores, common_scale=True)

    def _compute(self, attention, d_o, *given):
        """(o, lse, gradients of q, k, v and the captured arrays)."""

        def loss(q, k, v, *arrays):
            o, lse = attention(q, k, v, *self._mods(arrays), layout=self._layout)
            return (o.astype(jnp.promote_types(o.dtype, jnp.float32)) * d_o).sum(), (o, lse)

        gradients, (o, lse) = jax.grad(loss, argnums=range(6), has_aux=True)(*given)
        return o, lse, gradients
