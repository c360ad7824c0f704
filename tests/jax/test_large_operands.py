"""A warning where a part of a score function becomes a large array over queries and keys."""

import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import scoremod
from scoremod.jax import flex_attention

Q = jnp.ones((1, 32, 2, 8), jnp.float32)
VECTORS = jnp.asarray(np.random.default_rng(0).standard_normal((2, 32, 4)), jnp.float32)


def product(s, b, h, q_idx, kv_idx):
    return s + VECTORS[0, q_idx] @ VECTORS[1, kv_idx]


def test_a_large_array_is_warned_of_at_the_callers_line(monkeypatch):
    monkeypatch.setenv("SCOREMOD_WARN_MIB", "0.003")  # 32 * 32 * 4 bytes are 0.0039 MiB
    with pytest.warns(UserWarning, match=r"array of shape \(32, 32\), 0 MiB, over \(q_idx, kv_idx\).*SCOREMOD_WARN_MIB") as found:
        flex_attention(Q, Q, Q, product)
    assert found[0].filename == __file__
    with pytest.warns(UserWarning, match="SCOREMOD_WARN_MIB") as found:
        flex_attention(Q, Q, Q, product, sink=0.0)
    assert found[0].filename == __file__


def test_smaller_ones_and_those_of_one_index_are_not(monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        flex_attention(Q, Q, Q, product)
        monkeypatch.setenv("SCOREMOD_WARN_MIB", "0")
        flex_attention(Q, Q, Q, lambda s, b, h, q_idx, kv_idx: s + VECTORS[0, q_idx].sum() + VECTORS[1, kv_idx].max())


def test_the_documented_way_needs_no_array(monkeypatch):
    expected = flex_attention(Q, Q, Q, product, scale=0.5)
    monkeypatch.setenv("SCOREMOD_WARN_MIB", "0")
    q, k = (jnp.concatenate([Q, jnp.broadcast_to(x[None, :, None] * by, (1, 32, 2, 4))], -1) for x, by in zip(VECTORS, (1 / 0.5, 1)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_allclose(flex_attention(q, k, Q, scale=0.5), expected, rtol=2e-5, atol=2e-6)


def test_a_limit_that_is_none(monkeypatch):
    monkeypatch.setenv("SCOREMOD_WARN_MIB", "-1")
    with pytest.raises(scoremod.InvalidArgumentError, match="SCOREMOD_WARN_MIB: expected a number of MiB, at least 0, found '-1'"):
        flex_attention(Q, Q, Q, product)
