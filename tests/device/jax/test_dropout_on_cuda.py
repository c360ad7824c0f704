"""Dropout on NVIDIA GPUs: jitted, of a key that the device makes, with the weights that attention as XLA operations drops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cuda_devices import cuda_devices

from scoremod.jax import flex_attention

pytestmark = pytest.mark.skipif(not cuda_devices(), reason="no NVIDIA GPU")

SHAPE = (2, 192, 4, 64)
Q, K, V, D_O = (jax.random.normal(jax.random.key(i), SHAPE, jnp.bfloat16) for i in range(4))


def attend(q, k, v, key, backend=None):
    score_mod = lambda s, b, h, i, j: 2 * jnp.tanh(s) + 0.1 * h  # noqa: E731
    return flex_attention(q, k, v, score_mod, lambda b, h, i, j: i >= j, dropout_rate=0.3, dropout_key=key, backend=backend)


def results(backend, q, k, v, key):
    loss = lambda *x: (attend(*x, key, backend).astype(jnp.float32) * D_O).sum()  # noqa: E731
    return attend(q, k, v, key, backend), *jax.grad(loss, argnums=(0, 1, 2))(q, k, v)


def distance(x, y):
    x, y = (np.asarray(each, np.float64) for each in (x, y))
    return np.linalg.norm(x - y)


def assert_as_close_as_xla(found, plain, truth):
    """At most twice as far from float32 as the same attention as XLA operations in bf16, and an ulp of that."""
    for x, y, exact in zip(found, plain, truth, strict=True):
        assert distance(x, exact) <= 2 * distance(y, exact) + 2**-8 * np.linalg.norm(np.asarray(exact, np.float64))


def test_weights_are_those_that_xla_drops():
    wide = [x.astype(jnp.float32) for x in (Q, K, V)]
    run = jax.jit(lambda seed, *x: results(None, *x, jax.random.key(seed)))  # the key is made on the device
    xla = jax.jit(lambda seed, *x: results("xla", *x, jax.random.key(seed)))
    for seed in (1, 2):
        assert_as_close_as_xla(run(seed, Q, K, V), xla(seed, Q, K, V), xla(seed, *wide))
    with pytest.raises(AssertionError):  # another key's are not these
        assert_as_close_as_xla(run(1, Q, K, V), xla(2, Q, K, V), xla(2, *wide))


def test_mapped_calls_drop_what_each_does_by_itself():
    many, keys = jnp.stack([Q, -Q]), jax.random.split(jax.random.key(3), 2)
    mapped = jax.jit(jax.vmap(lambda q, key: results(None, q, K, V, key)))(many, keys)
    for i in range(2):
        plain = results("xla", many[i], K, V, keys[i])
        truth = results("xla", *(x.astype(jnp.float32) for x in (many[i], K, V)), keys[i])
        assert_as_close_as_xla([x[i] for x in mapped], plain, truth)
