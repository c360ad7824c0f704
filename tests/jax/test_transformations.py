"""jit, vmap, checkpoint, scan and differentiation of flex_attention."""

import functools

import dense_reference as dense
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scoremod
from scoremod.jax import flex_attention

B, S, H, D = 2, 17, 4, 8


def qkv(*leading, seed=0):
    return [dense.random_array(seed + i, (*leading, B, S, H, D)) for i in range(3)]


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def biased(attention, q, k, v, slopes, table, batch_bias, **options):
    """Reads b, h, an operand over the batch, and a table."""

    def score_mod(score, b, h, q_idx, kv_idx):
        return score * (1 + 0.25 * b) + slopes[h] * (q_idx - kv_idx) + table[q_idx - kv_idx + S - 1] + batch_bias[b, kv_idx]

    return attention(q, k, v, score_mod, causal, **options)


ARRAYS = [dense.random_array(7, (H,)), dense.random_array(8, (2 * S - 1,)), dense.random_array(9, (B, S))]
N = 3
MAPPED = [dense.random_array(17, (N, H)), dense.random_array(18, (N, 2 * S - 1)), dense.random_array(19, (N, B, S))]


def close(got, want, tolerance=3e-5):
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(x, y, atol=tolerance * max(1, np.abs(y).max()))


@pytest.mark.parametrize("mapped", [(0, 1, 2), (0,), (3,), (4,), (5,), (0, 1, 2, 3, 4, 5)])
@pytest.mark.parametrize("layout", ["BSHD", "SBHD"])
def test_vmap_is_a_loop(mapped, layout):
    singles, stacked = [*qkv(), *ARRAYS], [*qkv(N, seed=3), *MAPPED]
    arguments = [stacked[i] if i in mapped else singles[i] for i in range(6)]
    arguments[:3] = [jnp.swapaxes(x, -3, -4) if layout == "SBHD" else x for x in arguments[:3]]
    axes = [0 if i in mapped else None for i in range(6)]

    def compute(*x):
        loss = lambda *x: (biased(flex_attention, *x, layout=layout) ** 2).sum()  # noqa: E731
        return biased(flex_attention, *x, layout=layout, return_lse=True), jax.grad(loss, argnums=tuple(range(6)))(*x)

    got = jax.vmap(compute, axes)(*arguments)
    each = jax.jit(compute)
    loop = [each(*(x[n] if i in mapped else x for i, x in enumerate(arguments))) for n in range(N)]
    close(got, jax.tree.map(lambda *x: jnp.stack(x), *loop))


def test_vmap_over_another_axis_and_gradient_of_vmap():
    q, k, v = qkv(N, seed=3)
    together = lambda x: jax.vmap(lambda q, k, v: biased(flex_attention, q, k, v, *x), (1, 0, 0))(jnp.swapaxes(q, 0, 1), k, v)  # noqa: E731
    apart = lambda x: jnp.stack([biased(flex_attention, q[n], k[n], v[n], *x) for n in range(N)])  # noqa: E731
    close(jax.grad(lambda x: (together(x) ** 2).sum())(ARRAYS), jax.grad(lambda x: (apart(x) ** 2).sum())(ARRAYS))


def test_checkpoint_and_scan():
    q, k, v = qkv()

    def layers(attention, slopes):
        @jax.checkpoint
        def layer(x, slope):
            return x + biased(attention, x, k, v, slope, *ARRAYS[1:]), None

        return (jax.lax.scan(layer, q, slopes)[0] ** 2).sum()

    got, want = (jax.jit(jax.value_and_grad(functools.partial(layers, f)))(MAPPED[0]) for f in (flex_attention, dense.attention))
    close(got, want)


def test_only_wanted_gradients_are_computed():
    q, k, v = qkv()
    jaxpr = jax.make_jaxpr(jax.grad(lambda q, *x: biased(flex_attention, q, k, v, *x).sum(), argnums=(0, 2)))(q, *ARRAYS)
    text = str(jaxpr)
    assert text.count("scoremod_attention_backward") == 1 and "wanted=(1,)" in text.replace(" ", "")


def test_integer_arrays_have_no_gradient():
    q, k, v = qkv()
    ids = jnp.arange(B * S).reshape(B, S) // 5

    def loss(ids, q):
        return flex_attention(q, k, v, None, lambda b, h, q_idx, kv_idx: ids[b, q_idx] == ids[b, kv_idx]).sum()

    gradient = jax.grad(loss, allow_int=True)(ids, q)
    assert gradient.dtype == jax.dtypes.float0


def test_what_has_no_derivative_raises():
    q, k, v = qkv()
    loss = lambda q: (flex_attention(q, k, v) ** 2).sum()  # noqa: E731
    with pytest.raises(scoremod.UnsupportedError, match="first derivatives in reverse mode"):
        jax.hessian(loss)(q)
    with pytest.raises(scoremod.UnsupportedError, match="first derivatives in reverse mode"):
        jax.grad(lambda q: jax.grad(loss)(q).sum())(q)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(loss, (q,), (q,))


def test_the_xla_backend_differentiates_twice():
    q, k, v = (x[:1, :5, :2] for x in qkv())

    def twice(attention):
        loss = lambda q: (attention(q, k, v, lambda score, *_: jnp.tanh(score)) ** 3).sum()  # noqa: E731
        return jax.jit(jax.grad(lambda q: (jax.grad(loss)(q) ** 2).sum()))(q)

    close(twice(functools.partial(flex_attention, backend="xla")), twice(dense.attention), 1e-4)
