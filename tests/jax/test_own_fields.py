"""Sequences, pages and sinks as fields of the problem itself, against XLA operations; and calls whose fields no backend takes."""

import functools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import scoremod
from scoremod.jax import api, explain, flex_attention, own_fields

SEED = int(os.environ.get("SCOREMOD_TEST_SEED", np.random.SeedSequence().entropy % 2**32))
# The backend that takes such fields where JAX runs.
OWN = "cpu" if jax.default_backend() == "cpu" else "kernels"
HEADS, HEADS_KV, DIM, TOKENS, KEY_TOKENS = 4, 2, 16, 40, 48
GAPS = (np.array([2, 10, 10, 31, 36]), np.array([1, 9, 20, 40, 44]))  # before, between and after
WHOLE = (np.array([0, 10, 10, 31, 40]), np.array([0, 9, 20, 40, 48]))


@pytest.fixture(autouse=True)
def seed():
    print(f"SCOREMOD_TEST_SEED={SEED}")
    return np.random.default_rng(SEED)


def arrays(random):
    shapes = (TOKENS, HEADS, DIM), (KEY_TOKENS, HEADS_KV, DIM), (KEY_TOKENS, HEADS_KV, DIM), (4, HEADS), (24,), (HEADS,)
    return [jnp.asarray(random.standard_normal(shape), jnp.float32) for shape in shapes]


def attend(q, k, v, bias, positions, sink, q_offsets, kv_offsets, **options):
    def score_mod(s, b, h, q_idx, kv_idx):
        return s * bias[b, h] + positions[jnp.clip(kv_idx - q_idx + 12, 0, 23)]

    places = dict(layout="THD", q_offsets=q_offsets, kv_offsets=kv_offsets)
    return flex_attention(q, k, v, score_mod, lambda b, h, i, j: j <= i + 3, sink=sink, **places, **options)


def gradients(rate, backend, inputs, places, d_o, d_lse, **options):
    """The results and all gradients, the LSE's in them."""
    key = jax.random.key(3) if rate else None

    def loss(*x):
        options_of = dict(dropout_rate=rate, dropout_key=key, return_lse=True, return_max_logit=True, backend=backend)
        o, lse, largest = attend(*x, *places, **options_of, **options)
        return (o * d_o).sum() + jnp.where(jnp.isfinite(lse), lse * d_lse, 0).sum(), (o, lse, largest)

    return jax.jit(jax.grad(loss, argnums=tuple(range(6)), has_aux=True))(*inputs)


def assert_same(found, expected):
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        finite = np.isfinite(y)
        np.testing.assert_array_equal(np.isfinite(x), finite)
        np.testing.assert_allclose(np.where(finite, x, 0), np.where(finite, y, 0), atol=1e-4 * max(1.0, np.abs(np.where(finite, y, 0)).max()))


@pytest.fixture
def choices(monkeypatch):
    """(call, whether its own fields were taken) of each call that had the choice."""
    taken = []

    def takes(traced, memory):
        taken.append((traced.call, own_fields.takes_own_fields(traced, memory)))
        return taken[-1][1]

    monkeypatch.setattr(api, "takes_own_fields", takes)
    return taken


@pytest.mark.parametrize("places", [GAPS, WHOLE], ids=["gaps", "whole"])
@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_sequences_sinks_dropout_and_lse_gradients(seed, choices, places, rate):
    inputs = arrays(seed)
    d_o, d_lse = seed.standard_normal((TOKENS, HEADS, DIM), np.float32), seed.standard_normal((TOKENS, HEADS), np.float32)
    expected = gradients(rate, "xla", inputs, places, d_o, d_lse)
    assert not choices
    found = gradients(rate, OWN, inputs, places, d_o, d_lse, max_length=(24, 32) if rate else None)
    ((call, taken),) = choices
    assert taken and call.is_ragged and call.sink and call.bound() == ("offsets_q", "offsets_kv", "sink", *["dropout_keys"] * bool(rate))
    assert_same(found, expected)
    # Faults would be seen: another sequence's tokens, other dropped weights, a sink for another head.
    others = [(inputs, (places[0], places[1] + np.array([0, 1, 0, 0, 0])), 3), ([*inputs[:5], jnp.roll(inputs[5], 1)], places, 3)]
    for other, other_places, _ in others:
        o = gradients(rate, OWN, other, other_places, d_o, d_lse)[1][0]
        assert np.linalg.norm(o - found[1][0]) > 0.01 * np.linalg.norm(o)


def test_traced_offsets_are_those_of_the_call(seed, choices):
    *inputs, sink = arrays(seed)
    run = jax.jit(lambda q_offsets, kv_offsets: attend(*inputs, sink, q_offsets, kv_offsets, backend=OWN))
    for places in (GAPS, WHOLE):
        np.testing.assert_allclose(run(*places), attend(*inputs, sink, *places, backend="xla"), atol=2e-5)
    assert len(choices) == 1 and choices[0][0].place.sequences == 8


def test_vmap_is_a_loop(seed, choices):
    q, k, v, bias, positions, sink = arrays(seed)
    many = jnp.stack([q, 2 * q, 3 * q])
    offsets = jnp.stack([jnp.asarray(GAPS[0]), jnp.asarray(WHOLE[0]), jnp.asarray(GAPS[0])])

    def gradient(q, sink, q_offsets):
        loss = lambda *x: (attend(x[0], x[1], v, bias, positions, x[2], q_offsets, WHOLE[1], backend=OWN) ** 2).sum()  # noqa: E731
        return jax.grad(loss, argnums=(0, 1, 2))(q, k, sink)

    one = jax.jit(gradient)
    for mapped in ((0, None, 0), (0, 0, None)):
        sinks = jnp.stack([sink, -sink, 2 * sink])
        found = jax.vmap(gradient, mapped)(many, sink if mapped[1] is None else sinks, offsets if mapped[2] == 0 else WHOLE[0])
        loop = [one(many[n], sink if mapped[1] is None else sinks[n], offsets[n] if mapped[2] == 0 else jnp.asarray(WHOLE[0])) for n in range(3)]
        assert_same(found, jax.tree.map(lambda *x: jnp.stack(x), *loop))
    # Without a sink the mapped calls' tokens lie one after the other in one call.
    batched = jax.jit(jax.vmap(lambda q: attend(q, k, v, bias, positions, None, *WHOLE, backend=OWN))).lower(many).as_text()
    assert rf"tokens_q\22: {3 * TOKENS}," in batched and "while" not in batched
    assert all(taken for _, taken in choices)


BLOCKS, BLOCK = 11, 4
TABLE = np.array([[9, 2, 5, -1], [77, -7, 0, 0], [10, 3, 99, -1]])
CACHED = np.array([9, 0, 6])


def decode(q, pool_k, pool_v, table=TABLE, lengths=CACHED, **options):
    return flex_attention(q, pool_k, pool_v, zoo_cap, lambda b, h, i, j: j <= i + 6, page_table=table, lengths=lengths, **options)


def zoo_cap(s, b, h, q_idx, kv_idx):
    return 3 * jnp.tanh(s) + 0.1 * b


def pools(random):
    shapes = (3, 5, HEADS, DIM), (BLOCKS, BLOCK, HEADS_KV, DIM), (BLOCKS, BLOCK, HEADS_KV, DIM)
    q, k, v = (jnp.asarray(random.standard_normal(shape), jnp.float32) for shape in shapes)
    return q, k.at[0].set(jnp.nan), v.at[0].set(jnp.nan)


def test_pages_are_read_where_they_lie(seed, choices):
    q, k, v = pools(seed)
    sink = jnp.asarray(seed.standard_normal(HEADS), jnp.float32)
    both = dict(return_lse=True, return_max_logit=True, sink=sink)
    found, expected = (jax.jit(functools.partial(decode, backend=backend, **both))(q, k, v) for backend in (OWN, "xla"))
    assert_same(found, expected)
    jaxpr = str(jax.make_jaxpr(functools.partial(decode, backend=OWN))(q, k, v))
    assert "Paged(blocks_per_sequence=4)" in jaxpr and f"f32[3,16,{HEADS_KV},{DIM}]" not in jaxpr
    assert all(taken and call.is_paged for call, taken in choices)
    # Gradients gather the keys, which pages have none without.
    loss = lambda backend: lambda *x: (decode(*x[:3], sink=x[3], backend=backend) ** 2).sum()  # noqa: E731
    by_own, by_xla = (jax.grad(loss(backend), argnums=(0, 1, 2, 3))(q, k, v, sink) for backend in (OWN, "xla"))
    assert_same(by_own, by_xla)
    checkpointed = jax.grad(jax.checkpoint(loss(OWN)), argnums=(0, 1, 2, 3))(q, k, v, sink)
    assert_same(checkpointed, by_own)


def test_vmap_of_pages_shares_a_pool(seed):
    q, k, v = pools(seed)
    tables = jnp.stack([jnp.asarray(TABLE), jnp.where((TABLE > 0) & (TABLE < BLOCKS), BLOCKS - TABLE, TABLE)])
    run = functools.partial(decode, backend=OWN)
    shared = jax.vmap(lambda q, table: run(q, k, v, table))(jnp.stack([q, 2 * q]), tables)
    own = jax.vmap(lambda q, k, table: run(q, k, v, table))(jnp.stack([q, 2 * q]), jnp.stack([k, 2 * k]), tables)
    for n in range(2):
        np.testing.assert_allclose(shared[n], run((1 + n) * q, k, v, tables[n]), atol=1e-5)
        np.testing.assert_allclose(own[n], run((1 + n) * q, (1 + n) * k, v, tables[n]), atol=1e-5)


@pytest.mark.skipif(jax.device_count() < 2, reason="needs two devices")
def test_heads_on_a_mesh(seed):
    *inputs, sink = arrays(seed)
    q, k, v, bias, positions = inputs
    mesh = jax.make_mesh((2,), ("heads",), devices=jax.devices()[:2])
    place = lambda x, *spec: jax.device_put(x, NamedSharding(mesh, PartitionSpec(*spec)))  # noqa: E731
    sharded = [place(x, None, "heads") for x in (q, k, v)]
    loss = lambda *x: (attend(*x[:3], bias, positions, x[3], *GAPS, backend=OWN) ** 2).sum()  # noqa: E731
    run = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))
    assert_same(run(*sharded, place(sink, "heads")), run(q, k, v, sink))
    assert "all-gather" not in run.lower(*sharded, place(sink, "heads")).compile().as_text()


def test_what_takes_no_such_fields_goes_the_road_of_arrays(seed, monkeypatch):
    inputs = arrays(seed)
    d_o, d_lse = seed.standard_normal((TOKENS, HEADS, DIM), np.float32), seed.standard_normal((TOKENS, HEADS), np.float32)
    explained = functools.partial(explain, *inputs[:3], layout="THD", q_offsets=GAPS[0], kv_offsets=GAPS[1], sink=inputs[5])
    assert explained().road == own_fields.FIELDS and "fields of the problem" in str(explained())
    assert explained().problem["tokens_q"] == TOKENS and explained().problem["sink"] == "learned"
    found = gradients(0.0, OWN, inputs, GAPS, d_o, d_lse)
    pages = functools.partial(decode, *pools(seed), backend=OWN)
    by_pages = pages()
    monkeypatch.setattr(api, "takes_own_fields", lambda traced, memory: False)
    assert explained().road == own_fields.ARRAYS and "tokens_q" not in explained().problem
    assert_same(gradients(0.0, OWN, inputs, GAPS, d_o, d_lse), found)
    np.testing.assert_allclose(pages(), by_pages, atol=1e-5)
    # Which weights are dropped depends on positions in sequences, which that road's engines don't know.
    with pytest.raises(scoremod.UnsupportedError, match="dropout_rate: expected a backend that takes q_offsets"):
        attend(*inputs, *GAPS, dropout_rate=0.5, dropout_key=jax.random.key(0), backend=OWN)
    monkeypatch.undo()
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in pools(seed)]
    assert explain(*shapes, page_table=TABLE, lengths=CACHED).road == own_fields.FIELDS


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(max_length=3), "max_length: expected at least the 21 tokens of the longest sequence of q_offsets, found 3"),
        (dict(max_length=0), "max_length: expected a 32-bit integer of at least 1, found 0; it is the most tokens"),
        (dict(max_length=(24, 32, 1)), "max_length: expected a number, or a pair"),
        (dict(max_length=24.0), "max_length: expected a 32-bit integer"),
        (dict(sink=jnp.zeros(3)), r"sink: expected a float array of shape \(4,\)"),
    ],
)
def test_mistakes(seed, options, message):
    inputs = arrays(seed)
    with pytest.raises(scoremod.InvalidArgumentError, match=message):
        attend(*inputs[:5], options.pop("sink", inputs[5]), *GAPS, **options)
    with pytest.raises(scoremod.InvalidArgumentError, match="max_length: expected q_offsets beside it"):
        flex_attention(*pools(seed), max_length=8)
