"""JAX's tools for finding errors work with attention in the function: disable_jit, debug_nans, debug_infs, checking_leaks."""

import functools

import dense_reference as dense
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scoremod.jax import flex_attention

B, S, H, D = 2, 17, 4, 8
Q, K, V = (dense.random_array(i, (B, S, H, D)) for i in range(3))
SLOPES = dense.random_array(3, (H,))


def loss(attention, q, slopes, **options):
    def score_mod(score, b, h, q_idx, kv_idx):
        return score + slopes[h] * (q_idx - kv_idx)

    return (attention(q, K, V, score_mod, lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, **options) ** 2).sum()


def gradients(attention, **options):
    return jax.grad(lambda *x: loss(attention, *x, **options), argnums=(0, 1))(Q, SLOPES)


@functools.cache
def dense_gradients():
    return jax.jit(lambda: gradients(dense.attention))()


def not_a_number(q):
    """NaN where a score is negative."""
    return flex_attention(q, K, V, lambda score, *_: jnp.log(score))


def no_key_for_query_0(q, **options):
    return flex_attention(q, K, V, None, lambda b, h, q_idx, kv_idx: kv_idx < q_idx, **options)


@pytest.mark.parametrize(
    "backend, setting, arguments",
    [
        ("cpu", jax.disable_jit, ()),
        ("cpu", jax.debug_nans, (True,)),
        ("cpu", jax.debug_infs, (True,)),
        ("cpu", jax.checking_leaks, ()),
        ("xla", jax.disable_jit, ()),
        ("xla", jax.debug_nans, (True,)),
        ("xla", jax.checking_leaks, ()),
    ],
)
def test_a_setting_changes_no_result(backend, setting, arguments):
    want, of_keys = dense_gradients(), jax.jit(dense.attention)(K, K, V)
    with setting(*arguments):
        for got in gradients(flex_attention, backend=backend), jax.jit(lambda: gradients(flex_attention, backend=backend))():
            for x, y in zip(got, want, strict=True):
                np.testing.assert_allclose(x, y, atol=3e-5 * np.abs(y).max())
        mapped = jax.vmap(lambda q: flex_attention(q, K, V, backend=backend))(jnp.stack([Q, K]))
    np.testing.assert_allclose(mapped[1], of_keys, atol=3e-5)


@pytest.mark.parametrize("jit", [lambda function: function, jax.jit])
def test_debug_nans_says_where_a_nan_is_from(jit):
    with jax.debug_nans(True):
        with pytest.raises(FloatingPointError, match="nan.*scoremod_attention_forward"):
            jit(not_a_number)(Q)
        with pytest.raises(FloatingPointError, match="nan.*scoremod_attention_forward"):
            jit(jax.grad(lambda q: not_a_number(q).sum()))(Q)


def test_debug_infs_says_where_an_inf_is_from():
    """The log of no sum is -inf; as a number within a program it is nobody's concern."""
    with jax.debug_infs(True):
        np.testing.assert_array_equal(no_key_for_query_0(Q)[:, 0], 0)
        assert np.isfinite(jax.jit(jax.grad(lambda q: no_key_for_query_0(q).sum()))(Q)).all()
        with pytest.raises(FloatingPointError, match="inf.*scoremod_attention_forward"):
            no_key_for_query_0(Q, return_lse=True)


def test_no_tracer_leaks_from_a_jitted_call():
    with jax.checking_leaks():
        jax.jit(lambda q, slopes: loss(flex_attention, q, slopes))(Q, SLOPES)
        jax.jit(jax.vmap(lambda q, slopes: loss(flex_attention, q, slopes), (0, None)))(Q[None], SLOPES)


@pytest.mark.parametrize("backend", ["cpu", "xla"])
@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
def test_a_bad_score_is_seen_in_its_row_alone(backend, bad):
    """The softmax of a row with infinity is NaN, too."""
    q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 6, 1, 4))
    bias = jnp.zeros((6, 6)).at[4, 2].set(bad)

    def attend(bias):
        return flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: score + bias[q_idx, kv_idx], "causal", return_lse=True, backend=backend)

    (o, lse), (expected, expected_lse) = attend(bias), attend(jnp.zeros((6, 6)))
    rows = np.arange(6) == 4
    assert np.isnan(o[0, rows]).all() and np.isnan(lse[..., rows]).all()
    np.testing.assert_array_equal(o[0, ~rows], expected[0, ~rows])
    np.testing.assert_array_equal(lse[..., ~rows], expected_lse[..., ~rows])
