"""Batches and heads sharded over a mesh of eight CPU devices: partitioned without a gather, equal to one device."""

import re

import dense_reference as dense
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from scoremod.jax import flex_attention

B, S, H, D = 4, 24, 4, 8
MESHES = {"batch": (4, 1), "heads": (1, 4), "both": (4, 2)}


def mesh_of(shape):
    count = np.prod(shape)
    return Mesh(np.asarray(jax.devices()[:count]).reshape(shape), ("data", "model"))


def arrays(heads_kv):
    shapes = [(B, S, H, D), (B, S, heads_kv, D), (B, S, heads_kv, D), (H,), (H, 2 * S - 1), (B, S), (B, H)]
    return [dense.random_array(i, shape) for i, shape in enumerate(shapes)]


SPECS = [P("data", None, "model"), P("data", None, "model"), P("data", None, "model"), P("model"), P("model"), P("data"), P("data", "model")]


def loss(q, k, v, slopes, table, key_bias, gates):
    """Slopes and gates are sliced with the heads, key_bias with the batches; the table is read at computed indices."""

    def score_mod(score, b, h, q_idx, kv_idx):
        score = score * (1 + 0.125 * h) + slopes[h] * (q_idx - kv_idx) + table[h, q_idx - kv_idx + S - 1]
        return score * jax.nn.sigmoid(gates[b, h]) + key_bias[b, kv_idx] * (b + 1)

    o = flex_attention(q, k, v, score_mod, lambda b, h, q_idx, kv_idx: q_idx + 4 * (h % 2) >= kv_idx)
    return (o**2).sum(), o


def gradients(*x):
    (_, o), grads = jax.value_and_grad(loss, argnums=tuple(range(7)), has_aux=True)(*x)
    return o, grads


def gathers(compiled):
    """What is gathered: the shapes of every all-gather's result."""
    return re.findall(r"= (\S+) all-gather", compiled.as_text())


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("heads_kv", [1, 2, 4])
def test_shards_equal_one_device(mesh, heads_kv):
    given = arrays(heads_kv)
    mesh = mesh_of(MESHES[mesh])
    shards = mesh.shape["model"]
    specs = list(SPECS)
    if heads_kv % shards:  # fewer heads than shards: they are where all can read them
        specs[1] = specs[2] = P("data")
    placed = [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip(given, specs)]
    compiled = jax.jit(gradients).lower(*placed).compile()
    for got, want in zip(jax.tree.leaves(compiled(*placed)), jax.tree.leaves(jax.jit(gradients)(*given)), strict=True):
        np.testing.assert_allclose(got, want, atol=3e-5 * max(1, np.abs(want).max()))
    # Only the table, which every shard may read anywhere, may be gathered; and key heads that are fewer than the shards.
    assert all(f"[{H},{2 * S - 1}]" in x or (heads_kv % shards and f",{heads_kv},{D}]" in x) for x in gathers(compiled))
    local_batch, local_heads = B // mesh.shape["data"], H // shards
    assert f"f32[{local_batch},{S},{local_heads},{D}]" in compiled.as_text()


def test_results_are_sharded_as_the_inputs():
    mesh = mesh_of((4, 2))
    q, k, v = (jax.device_put(x, NamedSharding(mesh, SPECS[0])) for x in arrays(4)[:3])
    o = jax.jit(flex_attention)(q, k, v)
    assert o.sharding.is_equivalent_to(NamedSharding(mesh, SPECS[0]), 4)
    np.testing.assert_allclose(o, dense.attention(*arrays(4)[:3]), atol=1e-5)


def test_a_sharded_sequence_is_gathered_and_right():
    mesh = mesh_of((4, 2))
    q, k, v = (jax.device_put(x, NamedSharding(mesh, P("data", "model"))) for x in arrays(4)[:3])
    run = jax.jit(lambda *x: flex_attention(*x, mask_mod=lambda b, h, q_idx, kv_idx: q_idx >= kv_idx))
    np.testing.assert_allclose(run(q, k, v), dense.attention(*arrays(4)[:3], mask_mod=lambda b, h, i, j: i >= j), atol=1e-5)


def test_vmap_and_layouts_under_sharding():
    mesh = mesh_of((4, 2))
    stacked = [jnp.stack([x, x + 1]) for x in arrays(4)[:3]]
    slopes = arrays(4)[3]
    modifier = lambda score, b, h, q_idx, kv_idx: score * (b + 1) + slopes[h] * kv_idx  # noqa: E731
    run = jax.jit(jax.vmap(lambda *x: flex_attention(*(jnp.swapaxes(y, 0, 1) for y in x), modifier, layout="SBHD")))
    placed = [jax.device_put(x, NamedSharding(mesh, P(None, "data", None, "model"))) for x in stacked]
    np.testing.assert_allclose(run(*placed), run(*stacked), atol=1e-5)
