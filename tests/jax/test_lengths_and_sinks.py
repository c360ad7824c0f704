"""flex_attention's lengths and sink against the dense computation, their gradients too, and faults that must be seen."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scoremod
from scoremod.jax import flex_attention

BATCH, HEADS, HEADS_KV, SEQ_Q, SEQ_KV, DIM = 3, 4, 2, 5, 9, 8


def draw(dtype=np.float32):
    rng = np.random.default_rng(1)
    shapes = (BATCH, SEQ_Q, HEADS, DIM), (BATCH, SEQ_KV, HEADS_KV, DIM), (BATCH, SEQ_KV, HEADS_KV, 6), (BATCH, SEQ_Q, HEADS, 6)
    return [jnp.asarray(rng.standard_normal(shape), dtype) for shape in shapes]


def dense(q, k, v, lengths, sink):
    """(o, lse) as the definition reads. lengths: (of queries, of keys)."""
    k, v = (jnp.repeat(x, HEADS // HEADS_KV, axis=2) for x in (k, v))
    scores = 3 * jnp.tanh(jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(DIM))
    keep = jnp.arange(SEQ_KV) <= jnp.arange(SEQ_Q)[:, None] + 3
    keep = keep & (jnp.arange(SEQ_Q)[:, None] < lengths[0][:, None, None, None]) & (jnp.arange(SEQ_KV) < lengths[1][:, None, None, None])
    terms = jnp.where(keep, jnp.exp(scores), 0)
    sums = terms.sum(-1) + jnp.exp(sink)[:, None]
    return jnp.einsum("bhqk,bkhd->bqhd", terms / sums[..., None], v), jnp.log(sums)


LENGTHS = np.array([5, 3, 4]), np.array([6, 4, 0])
SINK = np.array([0.5, -2, 3, 0])


def attend(q, k, v, sink, lengths=LENGTHS, **options):
    return flex_attention(q, k, v, lambda s, b, h, i, j: 3 * jnp.tanh(s), lambda b, h, i, j: j <= i + 3, lengths=lengths, sink=sink, return_lse=True, **options)


@pytest.mark.parametrize("backend", ["cpu", "xla"])
def test_agree_with_the_definition(backend):
    q, k, v, d_o = draw()
    sink = jnp.asarray(SINK, jnp.float32)

    def loss(function):
        def value(q, k, v, sink):
            o, lse = function(q, k, v, sink)
            return (o * d_o).sum() + jnp.where(jnp.isfinite(lse), lse, 0).sum()

        return jax.value_and_grad(value, argnums=(0, 1, 2, 3))

    with jax.enable_x64(True):
        wide = [jnp.asarray(np.asarray(x), jnp.float64) for x in (q, k, v, sink)]
        truth = jax.tree.map(np.asarray, (dense(*wide[:3], LENGTHS, wide[3]), loss(lambda *x: dense(*x[:3], LENGTHS, x[3]))(*wide)))
    found = attend(q, k, v, sink, backend=backend), loss(lambda *x: attend(*x, backend=backend))(q, k, v, sink)
    plain = dense(q, k, v, LENGTHS, sink), loss(lambda *x: dense(*x[:3], LENGTHS, x[3]))(q, k, v, sink)
    for a, expected, rounded in zip(*(jax.tree.leaves(x) for x in (found, truth, plain)), strict=True):
        error, tolerance = np.linalg.norm(a - expected), 2 * np.linalg.norm(np.asarray(rounded, np.float64) - expected)
        # Twice the plain evaluation's error, and some roundings of scores near 3.
        assert error <= tolerance + 32 * 2**-24 * np.linalg.norm(expected)
    # A query beyond its length, and a batch without keys: nothing but the sink.
    o, lse = found[0]
    assert not np.asarray(o)[2].any()
    np.testing.assert_array_equal(np.asarray(lse)[2], np.broadcast_to(SINK.astype(np.float32)[:, None], (HEADS, SEQ_Q)))


@pytest.mark.parametrize("backend", ["cpu", "reference", "xla"])
def test_a_sink_of_inf_takes_all_weight(backend):
    """Whatever its head's rows hold, here NaN; the other heads are what they are without such a sink. One of -inf is none."""
    q, k, v, d_o = draw()
    poisoned = q.at[:, :, 1].set(jnp.nan)
    usual, infinite = jnp.asarray(SINK, jnp.float32), jnp.asarray([0.5, jnp.inf, 3, -jnp.inf], jnp.float32)

    def loss(q, k, v, sink):
        o, lse = attend(q, k, v, sink, backend=backend)
        finite = jnp.isfinite(lse)
        return (jnp.where(finite.transpose(0, 2, 1)[..., None], o * d_o, 0)).sum() + jnp.where(finite, lse, 0).sum()

    o, lse = attend(poisoned, k, v, infinite, backend=backend)
    others, others_lse = attend(poisoned, k, v, usual, backend=backend)
    assert not np.asarray(o)[:, :, 1].any() and np.isposinf(np.asarray(lse)[:, 1]).all()
    np.testing.assert_allclose(o[:, :, [0, 2]], others[:, :, [0, 2]], rtol=1e-6)
    np.testing.assert_allclose(lse[:, [0, 2]], others_lse[:, [0, 2]], rtol=1e-6)
    none, none_lse = attend(poisoned, k, v, None, backend=backend)
    np.testing.assert_allclose(o[:, :, 3], none[:, :, 3], rtol=1e-6)
    np.testing.assert_allclose(lse[:, 3], none_lse[:, 3], rtol=1e-6)
    # XLA's own derivative of a softmax of NaN is NaN, whatever it is multiplied by.
    of = q if backend == "xla" else poisoned
    dq, dk, dv, d_sink = map(np.asarray, jax.grad(loss, argnums=(0, 1, 2, 3))(of, k, v, infinite))
    assert not dq[:, :, 1].any() and d_sink[1] == d_sink[3] == 0 and d_sink[0] != 0
    assert all(np.isfinite(each).all() for each in (dk, dv, d_sink))


@pytest.mark.parametrize("layout", ["SBHD", "BHSD"])
def test_other_layouts(layout):
    q, k, v, _ = draw()
    expected = attend(q, k, v, jnp.asarray(SINK, jnp.float32))
    order = ["BSHD".index(letter) for letter in layout]
    o, lse = attend(*(jnp.transpose(x, order) for x in (q, k, v)), jnp.asarray(SINK, jnp.float32), layout=layout)
    np.testing.assert_allclose(o, jnp.transpose(expected[0], order), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(lse, expected[1], rtol=1e-6)


def test_lengths_are_arguments_of_a_jitted_function():
    q, k, v, _ = draw()
    run = jax.jit(lambda q, k, v, lengths: flex_attention(q, k, v, lengths=lengths))
    for kv in ([9, 1, 4], [0, 9, 2]):
        o = run(q, k, v, jnp.asarray(kv))
        for b, n in enumerate(kv):
            expected = flex_attention(q[b : b + 1], k[b : b + 1, :n], v[b : b + 1, :n]) if n else jnp.zeros((1, SEQ_Q, HEADS, 6))
            np.testing.assert_allclose(o[b : b + 1], expected, rtol=1e-5, atol=1e-6)


def test_half_precision_and_vmap():
    q, k, v, _ = draw(jnp.bfloat16)
    sink = jnp.asarray(SINK, jnp.bfloat16)
    o, lse = attend(q, k, v, sink)
    assert o.dtype == jnp.bfloat16 and lse.dtype == jnp.float32
    alone = jax.vmap(lambda sink: attend(q, k, v, sink)[0])(jnp.stack([sink, sink + 1]))
    np.testing.assert_array_equal(np.asarray(alone[0], np.float32), np.asarray(o, np.float32))
    assert not np.array_equal(np.asarray(alone[1], np.float32), np.asarray(o, np.float32))


def test_faults_would_be_seen():
    """The comparison above tells faults apart: no sink, and lengths off by one."""
    q, k, v, _ = draw()
    sink = jnp.asarray(SINK, jnp.float32)
    o = attend(q, k, v, sink)[0]
    for other in (attend(q, k, v, None)[0], attend(q, k, v, sink, lengths=(LENGTHS[0], np.maximum(LENGTHS[1] - 1, 0)))[0]):
        assert np.linalg.norm(o - other) > 0.05 * np.linalg.norm(o)


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(lengths=np.ones(3, np.float32)), "lengths: expected an integer array"),
        (dict(lengths=np.ones(2, np.int32)), "lengths: expected an integer array of shape \\(3,\\)"),
        (dict(lengths=(None, np.ones((3, 1), np.int32))), "found int32 of shape \\(3, 1\\)"),
        (dict(lengths=np.array([1, 2, 100])), "lengths: expected a number from 0 to .*, the positions there are, for batch 2; found 100"),
        (dict(lengths=jnp.array([1, -3, 2])), "lengths: expected a number from 0 to .* for batch 1; found -3"),
        (dict(lengths=([1, 2, 100], None)), "lengths: expected a number from 0 to .* for batch 2; found 100"),
        (dict(lengths=np.array([1, 2**32, 2])), "lengths: expected a number from 0 to .* for batch 1; found 4294967296"),
        (dict(sink=jnp.ones(3)), "sink: expected a float array of shape \\(4,\\)"),
        (dict(sink=jnp.ones(4, jnp.int32)), "sink: expected a float array"),
    ],
)
def test_mistakes(options, message):
    q, k, v, _ = draw()
    with pytest.raises(scoremod.InvalidArgumentError, match=message):
        flex_attention(q, k, v, **options)


@pytest.mark.parametrize(("given", "taken"), [(9, 8), (-1, 0)])
def test_lengths_that_only_the_call_knows_are_clamped(given, taken):
    q = jax.random.normal(jax.random.key(0), (2, 8, 2, 8))
    attend = jax.jit(lambda q, lengths: flex_attention(q, q, q, lengths=lengths))
    np.testing.assert_array_equal(attend(q, jnp.array([given, 3])), attend(q, jnp.array([taken, 3])))
