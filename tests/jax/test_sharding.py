"""Batches and heads sharded over a mesh of eight CPU devices: partitioned without a gather, equal to one device."""

import re

import dense_reference as dense
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import scoremod
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


AXIS_TYPES = pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])


@AXIS_TYPES
def test_arrays_that_only_constraints_in_the_program_shard(axis_type):
    """Nothing that the program is given lies on the mesh, which jax.set_mesh alone names."""
    given = arrays(2)
    want = jax.jit(loss)(*given)[1]
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(axis_type,) * 2)
    place = jax.sharding.reshard if axis_type == AxisType.Explicit else jax.lax.with_sharding_constraint
    for specs in ([P("data", None, "model")] * 3, [P("model", None, "data"), P("model"), P("model")]):
        with jax.set_mesh(mesh):
            o = jax.jit(lambda *x, s=specs: loss(*map(place, x[:3], s), *x[3:])[1])(*given)
        assert o.sharding.is_equivalent_to(NamedSharding(mesh, specs[0]), 4)
        np.testing.assert_allclose(o, want, atol=3e-5)


@pytest.mark.parametrize("heads_kv", [1, 2, 4])
def test_explicit_axes(heads_kv):
    """Where shardings are part of the types: those of the results follow q's, and nothing is gathered."""
    given = arrays(heads_kv)[:5]
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    heads = P("data", None, "model" if heads_kv % 2 == 0 else None)
    placed = [jax.device_put(x, NamedSharding(mesh, s)) for x, s in zip(given, [P("data", None, "model"), heads, heads, P(), P()])]

    def attend(q, k, v, slopes, table, backend=None):
        def modifier(score, b, h, q_idx, kv_idx):
            return score * (1 + 0.25 * b) + slopes[h] * (q_idx - kv_idx) + table[h, q_idx - kv_idx + S - 1]

        o, lse = flex_attention(q, k, v, modifier, return_lse=True, backend=backend)
        return (jnp.where(jnp.isneginf(lse), 0, lse) * o.sum((1, 3))[..., None]).sum(), (o, lse)

    gradient = jax.jit(jax.grad(attend, argnums=range(5), has_aux=True))
    want = gradient(*given)
    with jax.set_mesh(mesh):
        got = gradient(*placed)
        with pytest.raises(scoremod.UnsupportedError, match="jax.sharding.auto_axes"):
            attend(*placed, backend="xla")
        xla = jax.sharding.auto_axes(lambda *x: attend(*x, backend="xla")[0], out_sharding=P())(*placed)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(x, y, atol=3e-5 * max(1, np.abs(y).max()))
    o, lse = got[1]
    assert jax.typeof(o).sharding.spec == P("data", None, "model", None) and jax.typeof(lse).sharding.spec == P("data", "model", None)
    assert not gathers(jax.jit(lambda *x: attend(*x)[1][0]).lower(*placed).compile())
    np.testing.assert_allclose(xla, attend(*given)[0], rtol=1e-5)


@pytest.mark.parametrize("backend", [None, "xla"])
@pytest.mark.parametrize("check_vma", [True, False])
def test_captured_arrays_that_differ_from_shard_to_shard(backend, check_vma):
    """Inside jax.shard_map: each shard's part of the batch, with the captured arrays of its batches and some that all shards have."""
    given = arrays(2)
    specs = tuple(P("data") if x.shape[0] == B and x.ndim != 1 and x.shape[1] != 2 * S - 1 else P() for x in given)

    def attend(q, k, v, slopes, table, key_bias, gates):
        def score_mod(score, b, h, q_idx, kv_idx):
            bucket = jnp.searchsorted(jnp.asarray([-3, 0, 5]), q_idx - kv_idx)  # XLA computes it
            return (score + table[h, q_idx - kv_idx + S - 1] + key_bias[b, kv_idx] + 0.1 * bucket) * gates[b, h]

        return flex_attention(q, k, v, score_mod, lambda b, h, q_idx, kv_idx: slopes[h] * (q_idx - kv_idx) < 9, backend=backend)

    sharded = jax.shard_map(attend, mesh=mesh_of((4, 1)), in_specs=specs, out_specs=P("data"), check_vma=check_vma)
    np.testing.assert_allclose(sharded(*given), attend(*given), atol=3e-5)  # without jax.jit
    results = lambda f: jax.jit(lambda *x: (f(*x), jax.grad(lambda *x: (f(*x) ** 2).sum(), argnums=range(7))(*x)))(*given)  # noqa: E731
    for got, want in zip(*map(jax.tree.leaves, map(results, (sharded, attend))), strict=True):
        np.testing.assert_allclose(got, want, atol=3e-5 * max(1, np.abs(want).max()))
