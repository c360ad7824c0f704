"""Sequences sharded over a mesh axis: by ring and by all-gather, forward and backward as on one device."""

import functools

import dense_reference as dense
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import scoremod
from scoremod.jax import flex_attention
from scoremod.jax.context_parallel import context_parallel_attention, stripe, unstripe

B, S, H, D, SHARDS = 2, 32, 4, 8, 4
MESH = jax.make_mesh((SHARDS,), ("seq",), axis_types=(AxisType.Auto,))
ARRAYS = [dense.random_array(5, (H,)), dense.random_array(6, (2 * S - 1,)), dense.random_array(7, (B, S))]
IDS = jnp.asarray(np.arange(B * S).reshape(B, S) // 13)


def modifiers(slopes, table, key_bias):
    """Everything that asks for positions: a distance, a table of distances, an array over keys, documents, and what XLA computes."""

    def score_mod(score, b, h, q_idx, kv_idx):
        score = score + slopes[h] * (q_idx - kv_idx) + table[q_idx - kv_idx + S - 1] + key_bias[b, kv_idx]
        bucket = jnp.searchsorted(jnp.asarray([3, 9, 20]), kv_idx)
        return jnp.where(IDS[b, q_idx] == IDS[b, kv_idx], score + 0.1 * bucket, -jnp.inf)

    return score_mod, lambda b, h, q_idx, kv_idx: q_idx >= kv_idx


@pytest.mark.parametrize("strategy", ["ring", "all_gather"])
@pytest.mark.parametrize("striped", [False, True])
@pytest.mark.parametrize("check_vma", [False, True])
def test_as_on_one_device(strategy, striped, check_vma):
    q, k, v = (dense.random_array(i, (B, S, heads, D)) for i, heads in enumerate((H, 2, 2)))

    @functools.partial(
        jax.shard_map, mesh=MESH, in_specs=(*[P(None, "seq")] * 3, P(), P(), P()), out_specs=P(None, "seq"), check_vma=check_vma
    )
    def sharded(q, k, v, *arrays):
        mods = modifiers(*arrays)
        return context_parallel_attention(q, k, v, *mods, axis_name="seq", strategy=strategy, striped=striped)

    def parallel(q, k, v, *arrays):
        order = functools.partial(stripe, shards=SHARDS, axis=1) if striped else lambda x: x
        back = functools.partial(unstripe, shards=SHARDS, axis=1) if striped else lambda x: x
        return back(sharded(order(q), order(k), order(v), *arrays))

    def single(q, k, v, *arrays):
        return flex_attention(q, k, v, *modifiers(*arrays))

    results = []
    for attention in (parallel, single):
        loss = lambda *x, f=attention: (f(*x) ** 2).sum()  # noqa: E731
        results.append(jax.jit(lambda *x, f=attention, g=jax.grad(loss, argnums=range(6)): (f(*x), g(*x)))(q, k, v, *ARRAYS))
    for got, want in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(got, want, atol=3e-5 * max(1, np.abs(want).max()))


def test_the_ring_gathers_nothing():
    q = dense.random_array(0, (B, S, H, D))
    run = jax.shard_map(
        functools.partial(context_parallel_attention, axis_name="seq"), mesh=MESH, in_specs=P(None, "seq"), out_specs=P(None, "seq")
    )
    text = jax.jit(jax.grad(lambda q: (run(q, q, q) ** 2).sum())).lower(q).compile().as_text()
    assert "collective-permute" in text and "all-gather" not in text


def test_reordering():
    x = jnp.arange(24).reshape(2, 12)
    np.testing.assert_array_equal(stripe(x, 3, 1)[0], [0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11])
    np.testing.assert_array_equal(unstripe(stripe(x, 3, 1), 3, 1), x)


def test_a_wrong_strategy():
    x = jnp.ones((1, 4, 1, 8), jnp.float32)
    with pytest.raises(scoremod.InvalidArgumentError, match="strategy: expected one of all_gather, ring"):
        context_parallel_attention(x, x, x, axis_name="seq", strategy="rign")


def test_xla_is_no_backend_of_it():
    x = jnp.ones((1, 4, 1, 8), jnp.float32)
    with pytest.raises(scoremod.UnsupportedError, match='found "xla", which knows no sharded sequences; gather'):
        context_parallel_attention(x, x, x, axis_name="seq", backend="xla")
