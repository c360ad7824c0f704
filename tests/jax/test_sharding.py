"""Batches and heads sharded over a mesh of eight CPU devices: partitioned without a gather, equal to one device."""

import re

import dense_reference as dense
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import scoremod
from scoremod.jax import BACKWARD, FORWARD, flex_attention
from scoremod.jax.manual_axes import varying_axes

B, S, H, D = 4, 24, 4, 8
MESHES = {"batch": (4, 1), "heads": (1, 4), "both": (4, 2)}


def mesh_of(shape):
    count = np.prod(shape)
    return Mesh(np.asarray(jax.devices()[:count]).reshape(shape), ("data", "model"))


# Documents of some tokens each, and padding, whose number is 0; and how many keys each batch has.
IDS = jnp.asarray(np.tile(np.repeat([1, 2, 0], [9, 12, 3]), (B, 1)), jnp.int32)
LENGTHS = jnp.asarray([24, 5, 17, 20], jnp.int32)


def arrays(heads_kv):
    shapes = [(B, S, H, D), (B, S, heads_kv, D), (B, S, heads_kv, D), (H,), (H, 2 * S - 1), (B, S), (B, H)]
    return [dense.random_array(i, shape) for i, shape in enumerate(shapes)] + [IDS, LENGTHS]


FLOATS = tuple(range(7))
SPECS = [*[P("data", None, "model")] * 3, P("model"), P("model"), P("data"), P("data", "model"), P("data"), P("data")]


def of_documents(ids):
    return lambda b, h, q_idx, kv_idx: (ids[b, q_idx] == ids[b, kv_idx]) & (ids[b, kv_idx] > 0) & (q_idx + 4 * (h % 2) >= kv_idx)


def loss(q, k, v, slopes, table, key_bias, gates, ids, lengths):
    """Slopes and gates are sliced with the heads, key_bias, ids and lengths with the batches; the table is read at computed indices."""

    def score_mod(score, b, h, q_idx, kv_idx):
        score = score * (1 + 0.125 * h) + slopes[h] * (q_idx - kv_idx) * 0.5 + table[h, q_idx - kv_idx + S - 1]
        return score * jax.nn.sigmoid(gates[b, h]) + key_bias[b, kv_idx] * (b + 1)

    o = flex_attention(q, k, v, score_mod, of_documents(ids), lengths=lengths)
    return (o**2).sum(), o


def gradients(*x):
    (_, o), grads = jax.value_and_grad(loss, argnums=FLOATS, has_aux=True)(*x)
    return o, grads


def gathers(compiled):
    """The shapes of every all-gather's result."""
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
    # Only the table, which every shard may read anywhere, and KV heads that are fewer than the shards may be gathered.
    assert all(f"[{H},{2 * S - 1}]" in x or (heads_kv % shards and f",{heads_kv},{D}]" in x) for x in gathers(compiled))
    local_batch, local_heads = B // mesh.shape["data"], H // shards
    assert f"f32[{local_batch},{S},{local_heads},{D}]" in compiled.as_text()


@pytest.fixture
def gspmd():
    """XLA's partitioner before Shardy."""
    jax.config.update("jax_use_shardy_partitioner", False)
    yield
    jax.config.update("jax_use_shardy_partitioner", True)


def test_shards_of_gspmd_equal_one_device(gspmd):
    test_shards_equal_one_device("both", 2)
    mesh, q = mesh_of((4, 2)), arrays(4)[0]
    attend = jax.shard_map(lambda q: flex_attention(q, q, q), mesh=mesh, in_specs=P("data"), out_specs=P("data"), axis_names={"data"})
    with pytest.raises(scoremod.UnsupportedError, match="jax.shard_map over all axes .* found model beside data"):
        jax.jit(attend).lower(q)


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
    """With shardings in the types, those of the results follow q's, and nothing is gathered but lengths."""
    given = [*arrays(heads_kv)[:5], IDS, LENGTHS]
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    heads = P("data", None, "model" if heads_kv % 2 == 0 else None)
    placed = [jax.device_put(x, NamedSharding(mesh, s)) for x, s in zip(given, [P("data", None, "model"), heads, heads, P(), P(), P(), P("data")])]

    def attend(q, k, v, slopes, table, ids, lengths, backend=None):
        def modifier(score, b, h, q_idx, kv_idx):
            return score * (1 + 0.25 * b) + slopes[h] * (q_idx - kv_idx) * 0.5 + table[h, q_idx - kv_idx + S - 1]

        o, lse = flex_attention(q, k, v, modifier, of_documents(ids), lengths=lengths, return_lse=True, backend=backend)
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
    assert all(f"s32[{B}]" in x for x in gathers(jax.jit(lambda *x: attend(*x)[1][0]).lower(*placed).compile()))
    np.testing.assert_allclose(xla, attend(*given)[0], rtol=1e-5)


def test_what_is_exported_knows_its_shards():
    q, slopes = dense.random_array(0, (B, S, H, D)), dense.random_array(3, (H,))
    attend = lambda q: flex_attention(q, q, q, lambda score, b, h, q_idx, kv_idx: score + slopes[h] * q_idx)  # noqa: E731
    known = [export.DisabledSafetyCheck.custom_call(target) for target in (FORWARD, BACKWARD)]
    exported = lambda f, q: export.export(jax.jit(f), disabled_checks=known)(q)  # noqa: E731
    for axis_type in (AxisType.Auto, AxisType.Explicit):
        mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(axis_type,) * 2)
        placed = jax.device_put(q, NamedSharding(mesh, P("data", None, "model")))
        by_hand = jax.shard_map(attend, mesh=mesh, in_specs=P("data"), out_specs=P("data"))
        with jax.set_mesh(mesh):
            if axis_type == AxisType.Auto:
                with pytest.raises(scoremod.UnsupportedError, match="jax.export: .* inside a jax.shard_map over all axes"):
                    exported(attend, placed)
                got = exported(by_hand, placed).call(placed)
            else:
                got = exported(attend, placed).call(placed)
        np.testing.assert_allclose(got, attend(q), atol=1e-5)


@pytest.mark.parametrize("heads_kv", [1, 4])
@pytest.mark.parametrize("axes", [("part", "data", "model"), ("data", "model", "part")])
def test_axes_that_shard_map_leaves_automatic(axes, heads_kv):
    """Each part of the batch is a call of its own, whose batches and heads are sharded over the axes of the mesh that jax.shard_map leaves."""
    given = arrays(heads_kv)
    mesh = jax.make_mesh((2, 2, 2), axes, axis_types=(AxisType.Auto,) * 3)
    of_part = [P("part") if i < 3 or i > 4 else P() for i in range(len(given))]
    placed_as = [P(("part", "data"), None, "model")] * 3 + [P("model"), P(), P(("part", "data")), P("part", "model"), P("part"), P("part")]
    placed_as[1:3] = placed_as[1:3] if heads_kv > 1 else [P("part")] * 2
    placed = [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip(given, placed_as, strict=True)]
    parts = jax.shard_map(lambda *x: loss(*x)[1], mesh=mesh, in_specs=tuple(of_part), out_specs=P("part"), axis_names={"part"})

    def in_turn(*x):
        halves = [[y if spec == P() else y[2 * i : 2 * i + 2] for y, spec in zip(x, of_part)] for i in range(2)]
        return jnp.concatenate([loss(*half)[1] for half in halves])

    results = lambda f: jax.jit(lambda *x: (f(*x), jax.grad(lambda *x: (f(*x) ** 2).sum(), argnums=FLOATS)(*x)))  # noqa: E731
    compiled = results(parts).lower(*placed).compile()
    for got, want in zip(*map(jax.tree.leaves, (compiled(*placed), results(in_turn)(*given))), strict=True):
        np.testing.assert_allclose(got, want, atol=3e-5 * max(1, np.abs(want).max()))
    assert f"f32[1,{S},{H // 2},{D}]" in compiled.as_text()
    assert not [shape for shape in gathers(compiled) if f"{S},{H},{D}]" in shape]


@pytest.mark.parametrize("backend", [None, "xla"])
@pytest.mark.parametrize("check_vma", [True, False])
def test_captured_arrays_that_differ_from_shard_to_shard(backend, check_vma):
    """Inside jax.shard_map: each shard's part of the batch, with the captured arrays of its batches and some that all shards have."""
    given = arrays(2)
    of_batches = lambda x: x.shape[0] == B and x is not given[3] and x is not given[4]  # noqa: E731
    specs = tuple(P("data") if of_batches(x) else P() for x in given)

    def attend(q, k, v, slopes, table, key_bias, gates, ids, lengths):
        def score_mod(score, b, h, q_idx, kv_idx):
            bucket = jnp.searchsorted(jnp.asarray([-3, 0, 5]), q_idx - kv_idx)  # XLA computes it
            return (score + table[h, q_idx - kv_idx + S - 1] + key_bias[b, kv_idx] * 2.0 + 0.1 * bucket) * gates[b, h]

        mask_mod = lambda b, h, q_idx, kv_idx: (slopes[h] * (q_idx - kv_idx) < 9) & of_documents(ids)(b, h, q_idx, kv_idx)  # noqa: E731
        return flex_attention(q, k, v, score_mod, mask_mod, lengths=lengths, backend=backend)

    assert_sharded_equals(attend, given, specs, check_vma)


def assert_sharded_equals(attend, given, specs, check_vma=True):
    """Shards of the batch inside jax.shard_map, alone and with gradients under jax.jit, compute the same as the whole call."""
    sharded = jax.shard_map(attend, mesh=mesh_of((4, 1)), in_specs=specs, out_specs=P("data"), check_vma=check_vma)
    floats = tuple(i for i, x in enumerate(given) if jnp.issubdtype(x.dtype, jnp.floating))
    results = lambda f: jax.jit(lambda *x: (f(*x), jax.grad(lambda *x: (f(*x) ** 2).sum(), argnums=floats)(*x)))(*given)  # noqa: E731
    expected = results(attend)
    np.testing.assert_allclose(sharded(*given), expected[0], atol=3e-5)  # without jax.jit
    for got, want in zip(*map(jax.tree.leaves, (results(sharded), expected)), strict=True):
        np.testing.assert_allclose(got, want, atol=3e-5 * max(1, np.abs(want).max()))


@jax.custom_jvp
def sloped(x, y):
    return x * y * jnp.tanh(x)


@sloped.defjvp
def _sloped_rule(primals, tangents):
    x, y = primals
    return sloped(x, y), 2 * tangents[0] * y + 3 * tangents[1] * x


@jax.custom_vjp
def gained(x, y):
    return x * y + x


gained.defvjp(lambda x, y: (gained(x, y), (x, y)), lambda kept, upstream: (upstream * kept[1] * 2, upstream * kept[0] * 3))


@jax.custom_vjp
def gained_by_shared(x, y):
    """y is equal on all shards, so that JAX expects its gradient to be, too."""
    return x * y


def _shared_gain(kept, upstream):
    of_y = upstream * kept[0] * 3
    axes = tuple(varying_axes(of_y))
    return upstream * kept[1] * 2, jax.lax.psum(of_y, axes) if axes else of_y


gained_by_shared.defvjp(lambda x, y: (gained_by_shared(x, y), (x, y)), _shared_gain)

# JAX writes casts into these inside jax.shard_map: functions of a score, a gate and a number that all shards share.
OF_GATES = {
    "literals": lambda score, gate, shared: score * 2.0 + jnp.where(gate > 0.5, 1.0, -0.5) + gate * jnp.sqrt(2.0) * 0.1,
    "library functions": lambda score, gate, shared: jnp.logaddexp(score, gate * 0.5) + jax.nn.relu(gate * 2.0) * jax.nn.relu(score * shared),
    "jitted functions": lambda score, gate, shared: jnp.clip(score * gate, -1.0, 2.0) + jax.nn.silu(score * gate) + jax.nn.softplus(gate),
    "own jvp": lambda score, gate, shared: sloped(score, shared) + sloped(shared, gate) + sloped(score, gate) + sloped(gate, 2.0),
    "own vjp": lambda score, gate, shared: gained(score, gate) + gained(score * shared, gate * 0.5) + gained_by_shared(score, shared),
    "branches": lambda score, gate, shared: jax.lax.cond(gate > 0, lambda x: x * 2.0, lambda x: x - shared, score),
    "a loop": lambda score, gate, shared: score + jax.lax.scan(lambda x, _: (x * 0.5 + shared, None), gate * 1.0, None, length=3)[0],
    "narrow": lambda score, gate, shared: score + (gate.astype(jnp.bfloat16) * jnp.bfloat16(2)).astype(jnp.float32),
}


@pytest.mark.parametrize("name", OF_GATES)
def test_functions_with_literals_and_shared_numbers_inside_shard_map(name):
    given = [*(dense.random_array(i, (B, S, H, D)) for i in range(3)), dense.random_array(3, (B, H)), jnp.float32(0.7)]

    def attend(q, k, v, gates, shared):
        return flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: OF_GATES[name](score, gates[b, h], shared))

    assert_sharded_equals(attend, given, (*[P("data")] * 4, P()))
