"""Dropout and the largest scores of flex_attention: against the dense computation with the mask that the call drops by, on shards, and faults
that must be seen."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scoremod
from scoremod.jax import flex_attention

BATCH, HEADS, HEADS_KV, SEQ, DIM = 2, 4, 2, 16, 8
RATE = 0.25
KEY = jax.random.key(7)


def draw():
    rng = np.random.default_rng(1)
    shapes = (BATCH, SEQ, HEADS, DIM), (BATCH, SEQ, HEADS_KV, DIM), (BATCH, SEQ, HEADS_KV, DIM), (BATCH, SEQ, HEADS, DIM)
    return [jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes]


def score_mod(s, b, h, q_idx, kv_idx):
    return 3 * jnp.tanh(s)


def attend(q, k, v, key=KEY, rate=RATE, **options):
    return flex_attention(q, k, v, score_mod, dropout_rate=rate, dropout_key=key, **options)


def dense(q, k, v, shares):
    k, v = (jnp.repeat(x, HEADS // HEADS_KV, axis=2) for x in (k, v))
    weights = jax.nn.softmax(3 * jnp.tanh(jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(DIM)), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights * shares, v)


def dropped_shares(key=KEY):
    """The factor of each weight, [batch, heads, q, kv]: read off the outputs for values that are unit vectors."""
    q, k, _, _ = draw()
    unit = jnp.broadcast_to(jnp.eye(SEQ)[None, :, None], (BATCH, SEQ, HEADS_KV, SEQ))
    shares = attend(q, k, unit, key) / attend(q, k, unit, rate=0)
    return np.asarray(jnp.moveaxis(shares, 2, 1))


def test_weights_are_dropped_and_the_others_rescaled():
    shares = dropped_shares()
    np.testing.assert_allclose(shares[shares > 0], 1 / (1 - RATE), rtol=1e-5)
    dropped, count = (shares == 0).sum(), shares.size
    assert abs(dropped - RATE * count) < 5 * np.sqrt(RATE * (1 - RATE) * count)
    other = dropped_shares(jax.random.key(8))
    assert abs(((shares == 0) & (other == 0)).sum() - RATE**2 * count) < 5 * np.sqrt(RATE**2 * count)


def test_outputs_and_gradients_are_those_of_the_dropped_weights():
    q, k, v, d_o = draw()
    shares = dropped_shares()
    shares = np.where(shares > 0, np.float32(1 / (1 - RATE)), np.float32(0))

    def results(function):
        return function(q, k, v), *jax.grad(lambda *x: (function(*x) * d_o).sum(), argnums=(0, 1, 2))(q, k, v)

    found, plain = results(attend), jax.jit(lambda: results(lambda *x: dense(*x, shares)))()
    with jax.enable_x64(True):
        wide = [jnp.asarray(np.asarray(x), jnp.float64) for x in (q, k, v, d_o)]
        gradients = jax.grad(lambda *x: (dense(*x, shares) * wide[3]).sum(), argnums=(0, 1, 2))
        truth = [np.asarray(x) for x in jax.jit(lambda *x: (dense(*x, shares), *gradients(*x)))(*wide[:3])]
    for a, rounded, expected in zip(found, plain, truth, strict=True):
        error, tolerance = np.linalg.norm(a - expected), 2 * np.linalg.norm(np.asarray(rounded, np.float64) - expected)
        assert error <= tolerance + 32 * 2**-24 * np.linalg.norm(expected)
    # Outputs of another key or without dropout differ, so that the comparison can tell them apart.
    for other in (attend(q, k, v, jax.random.key(8)), attend(q, k, v, rate=0.0), found[0] * (1 - RATE)):
        assert np.linalg.norm(other - found[0]) > 0.05 * np.linalg.norm(found[0])


def test_gradients_through_the_lse_are_of_all_weights():
    """Which no weight that is dropped changes; a sink is applied to the LSE, too."""
    q, k, v, d_o = draw()
    shares = jnp.where(dropped_shares() > 0, np.float32(1 / (1 - RATE)), 0)
    sink = jnp.asarray([-1.0, 0.0, 1.0, 2.0], jnp.float32)

    def of_dense(q, k, v, sink):
        scores = 3 * jnp.tanh(jnp.einsum("bqhd,bkhd->bhqk", q, jnp.repeat(k, HEADS // HEADS_KV, axis=2)) / np.sqrt(DIM))
        lse = jnp.logaddexp(jax.nn.logsumexp(scores, axis=-1), sink[:, None])
        o = jnp.einsum("bhqk,bkhd->bqhd", jnp.exp(scores - lse[..., None]) * shares, jnp.repeat(v, HEADS // HEADS_KV, axis=2))
        return (o * d_o).sum() + (lse * d_o[..., 0].swapaxes(1, 2)).sum()

    def of_call(q, k, v, sink):
        o, lse = attend(q, k, v, sink=sink, return_lse=True)
        return (o * d_o).sum() + (lse * d_o[..., 0].swapaxes(1, 2)).sum()

    gradients = (jax.jit(jax.grad(function, argnums=(0, 1, 2, 3)))(q, k, v, sink) for function in (of_call, of_dense))
    for found, expected in zip(*gradients, strict=True):
        assert np.linalg.norm(found - expected) <= 64 * 2**-24 * np.linalg.norm(expected)


def test_a_key_is_an_argument_like_any_other():
    q, k, v, _ = draw()
    run = jax.jit(attend)
    for key in jax.random.split(KEY, 3):
        np.testing.assert_array_equal(run(q, k, v, key), attend(q, k, v, key))
    assert run._cache_size() == 1
    loss = lambda q: (attend(q, k, v) ** 2).sum()  # noqa: E731
    np.testing.assert_array_equal(jax.grad(jax.checkpoint(loss))(q), jax.grad(loss)(q))
    steps = jax.lax.scan(lambda key, _: (jax.random.split(key)[0], attend(q, k, v, key)), KEY, length=2)[1]
    np.testing.assert_array_equal(steps[0], attend(q, k, v, KEY))


def test_shards_drop_what_the_whole_call_does(monkeypatch):
    """Also where the program reads the indices of batch and head, which shards are told."""
    monkeypatch.setitem(globals(), "score_mod", lambda s, b, h, i, j: 3 * jnp.tanh(s) + 0.1 * (h + b))
    if len(jax.devices("cpu")) < 4:
        pytest.skip("needs four devices")
    q, k, v, d_o = draw()
    mesh = jax.make_mesh((2, 2), ("batch", "heads"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch", None, "heads"))
    cut = [jax.device_put(x, sharding) for x in (q, k, v)]
    np.testing.assert_array_equal(jax.jit(attend)(*cut), attend(q, k, v))
    gradient = jax.grad(lambda q, k, v: (attend(q, k, v) * d_o).sum(), argnums=(0, 1, 2))
    for a, b in zip(jax.jit(gradient)(*cut), gradient(q, k, v)):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", ["cpu", "xla"])
def test_the_largest_scores(backend):
    q, k, v, _ = draw()
    mask = lambda b, h, i, j: (j <= i) & (i != 3)  # noqa: E731
    call = lambda **more: jax.jit(lambda *x: flex_attention(*x, score_mod, mask, backend=backend, **more))(q, k, v)  # noqa: E731
    o, lse, largest = call(return_lse=True, return_max_logit=True)
    scores = 3 * np.tanh(np.einsum("bqhd,bkhd->bhqk", q, np.repeat(k, 2, axis=2)) / np.sqrt(DIM))
    i, j = np.arange(SEQ)[:, None], np.arange(SEQ)
    expected = np.where((j <= i) & (i != 3), scores, -np.inf).max(-1)
    assert np.isneginf(np.asarray(largest)[:, :, 3]).all()
    np.testing.assert_allclose(largest, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(call(return_max_logit=True)[1], largest)
    np.testing.assert_array_equal(call(return_lse=True)[1], lse)
    many = jax.jit(jax.vmap(lambda q: flex_attention(q, k, v, score_mod, mask, backend=backend, return_max_logit=True)[1]))(jnp.stack([q, q]))
    np.testing.assert_array_equal(many[1], largest)
    # A constant to derivatives, beside what they flow through.
    both = lambda q: sum(x[:, 4:].sum() for x in flex_attention(q, k, v, score_mod, backend=backend, return_max_logit=True))  # noqa: E731
    alone = lambda q: flex_attention(q, k, v, score_mod, backend=backend)[:, 4:].sum()  # noqa: E731
    np.testing.assert_allclose(jax.jit(jax.grad(both))(q), jax.jit(jax.grad(alone))(q), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "options, error, message",
    [
        (dict(dropout_rate=1.0), scoremod.InvalidArgumentError, "dropout_rate: expected a number from 0 to below 1, in float32 at most 0.99999994"),
        (dict(dropout_rate=1 - 2**-40), scoremod.InvalidArgumentError, "dropout_rate: expected a number from 0 to below 1"),
        (dict(dropout_rate=10**400), scoremod.InvalidArgumentError, "dropout_rate: expected a number from 0 to below 1"),
        (dict(dropout_rate=float("nan")), scoremod.InvalidArgumentError, "found nan"),
        (dict(dropout_rate=0.5), scoremod.InvalidArgumentError, "dropout_key: expected a key of jax.random beside dropout_rate"),
        (dict(dropout_rate=0.5, dropout_key=3.5), scoremod.InvalidArgumentError, "dropout_key: expected one key"),
    ],
)
def test_mistakes(options, error, message):
    q, k, v, _ = draw()
    with pytest.raises(error, match=message):
        flex_attention(q, k, v, **options)


def test_mapped_calls_drop_what_each_does_by_itself():
    q, k, v, d_o = draw()
    many = jnp.stack([q, 2 * q, -q])
    keys = jax.random.split(KEY, 3)

    def loss(q, key):
        return (attend(q, k, v, key) * d_o).sum()

    for of in (lambda q, key: attend(q, k, v, key), jax.grad(loss)):
        one_key = jax.vmap(lambda q, of=of: of(q, KEY))(many)
        own_keys = jax.vmap(of)(many, keys)
        for i in range(3):
            np.testing.assert_allclose(one_key[i], of(many[i], KEY), rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(own_keys[i], of(many[i], keys[i]), rtol=1e-5, atol=1e-6)
    assert np.linalg.norm(own_keys[1] - jax.grad(loss)(many[1], keys[0])) > 0.05 * np.linalg.norm(own_keys[1])


@pytest.mark.parametrize("keys", [SEQ, 300, 259])
def test_attention_as_xla_operations_drops_the_same(keys):
    """Past one of its blocks of keys, and where they end within four."""
    q, _, _, d_o = draw()
    rng = np.random.default_rng(2)
    k, v = (jnp.asarray(rng.standard_normal((BATCH, keys, HEADS_KV, DIM)), jnp.float32) for _ in range(2))
    results = {}
    for backend in ("cpu", "xla"):
        of = lambda *x, backend=backend: attend(*x, backend=backend)  # noqa: E731
        gradients = jax.grad(lambda *x, of=of: (of(*x) * d_o).sum(), argnums=(0, 1, 2))
        results[backend] = jax.jit(lambda *x, of=of, gradients=gradients: (of(*x), *gradients(*x)))(q, k, v)
    for x, y in zip(results["cpu"], results["xla"], strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)
    tangent = jax.jit(lambda q: jax.jvp(lambda q: attend(q, k, v, backend="xla"), (q,), (q,))[1])(q)
    np.testing.assert_allclose((tangent * d_o).sum(), (results["xla"][1] * q).sum(), rtol=1e-4)
