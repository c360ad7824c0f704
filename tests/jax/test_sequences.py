"""Sequences one after the other and keys in blocks, against each sequence by itself with plain dense attention; and faults that must be seen."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scoremod
from scoremod.jax import flex_attention

HEADS, HEADS_KV, DIM = 4, 2, 8
Q_OFFSETS, KV_OFFSETS = np.array([0, 4, 4, 9, 11]), np.array([0, 3, 5, 12, 12])
BIAS = np.random.default_rng(3).standard_normal((4, HEADS)).astype(np.float32)


def draw(*shapes):
    rng = np.random.default_rng(1)
    return [jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes]


def ragged_tensors():
    return draw((11, HEADS, DIM), (12, HEADS_KV, DIM), (12, HEADS_KV, 6), (11, HEADS, 6))


def score_mod(s, b, h, q_idx, kv_idx):
    return 3 * jnp.tanh(s) + jnp.asarray(BIAS)[b, h] * jnp.float32(q_idx - kv_idx)


def mask_mod(b, h, q_idx, kv_idx):
    return kv_idx <= q_idx + 2


def dense_sequence(q, k, v, b, lse_too=False, keys=None):
    """One sequence's output (and LSE) as the definition reads."""
    k, v = (jnp.repeat(x, HEADS // HEADS_KV, axis=1) for x in (k, v))
    i, j = jnp.arange(q.shape[0])[:, None], jnp.arange(k.shape[0])
    scores = jnp.einsum("qhd,khd->hqk", q, k) / np.sqrt(DIM)
    scores = 3 * jnp.tanh(scores) + BIAS[b][:, None, None] * (i - j)
    keep = (j <= i + 2) & (True if keys is None else j < keys)
    terms = jnp.where(keep, jnp.exp(scores), 0)
    sums = terms.sum(-1)
    o = jnp.einsum("hqk,khd->qhd", terms / jnp.where(sums > 0, sums, 1)[..., None], v)
    return (o, jnp.log(sums).T) if lse_too else o


def each_by_itself(q, k, v, q_offsets=Q_OFFSETS, kv_offsets=KV_OFFSETS):
    parts = [dense_sequence(q[a:z], k[c:e], v[c:e], b) for b, (a, z, c, e) in enumerate(zip(q_offsets, q_offsets[1:], kv_offsets, kv_offsets[1:]))]
    return jnp.concatenate(parts)


def attend(q, k, v, q_offsets=Q_OFFSETS, kv_offsets=KV_OFFSETS, **options):
    return flex_attention(q, k, v, score_mod, mask_mod, layout="THD", q_offsets=q_offsets, kv_offsets=kv_offsets, **options)


def assert_near(found, plain, truth):
    """Twice as far from float64 as plain float32, and some roundings."""
    error, tolerance = np.linalg.norm(found - truth), 2 * np.linalg.norm(np.asarray(plain, np.float64) - truth)
    assert error <= tolerance + 32 * 2**-24 * np.linalg.norm(truth)


def in_float64(function, *arrays):
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, function(*(jnp.asarray(np.asarray(x), jnp.float64) for x in arrays)))


@pytest.mark.parametrize("backend", ["cpu", "xla"])
def test_each_sequence_attends_to_itself(backend):
    q, k, v, d_o = ragged_tensors()
    gradients = lambda f: jax.grad(lambda q, k, v, d_o: (f(q, k, v) * d_o).sum(), argnums=(0, 1, 2))  # noqa: E731
    assert_near(attend(q, k, v, backend=backend), each_by_itself(q, k, v), in_float64(each_by_itself, q, k, v))
    found = gradients(lambda *x: attend(*x, backend=backend))(q, k, v, d_o)
    plain, truth = gradients(each_by_itself)(q, k, v, d_o), in_float64(gradients(each_by_itself), q, k, v, d_o)
    for each in zip(found, plain, truth, strict=True):
        assert_near(*each)


def test_the_lse_is_that_of_the_tokens():
    q, k, v, _ = ragged_tensors()
    lse = attend(q, k, v, return_lse=True)[1]
    assert lse.shape == (11, HEADS)
    expected = dense_sequence(q[4:9], k[5:12], v[5:12], 2, lse_too=True)[1]
    np.testing.assert_allclose(lse[4:9], expected, rtol=1e-5)
    assert np.isneginf(lse[9:]).all()  # a sequence without keys


def test_offsets_are_arguments_of_a_jitted_function():
    q, k, v, _ = ragged_tensors()
    run = jax.jit(attend)
    for q_offsets, kv_offsets in ((Q_OFFSETS, KV_OFFSETS), (np.array([0, 1, 5, 5, 11]), np.array([0, 6, 7, 7, 12]))):
        np.testing.assert_allclose(run(q, k, v, q_offsets, kv_offsets), each_by_itself(q, k, v, q_offsets, kv_offsets), rtol=2e-5, atol=2e-6)
    assert run._cache_size() == 1


def test_tokens_of_no_sequence_give_nothing():
    q, k, v, _ = ragged_tensors()
    shorter = attend(q, k, v, np.array([2, 4, 4, 8, 8]), KV_OFFSETS)
    assert not np.asarray(shorter)[:2].any() and not np.asarray(shorter)[8:].any()


def test_vmap_lengths_sinks_and_checkpoint():
    q, k, v, _ = ragged_tensors()
    many = jax.vmap(lambda q: attend(q, k, v))(jnp.stack([q, 2 * q]))
    np.testing.assert_array_equal(many[0], attend(q, k, v))
    np.testing.assert_array_equal(many[1], attend(2 * q, k, v))
    bounded = attend(q, k, v, lengths=np.array([2, 2, 5, 0]))
    np.testing.assert_allclose(bounded[4:9], dense_sequence(q[4:9], k[5:12], v[5:12], 2, keys=5), rtol=2e-5, atol=2e-6)
    o, lse = attend(q, k, v, sink=jnp.zeros(HEADS), return_lse=True)
    assert o.shape == (11, HEADS, 6) and not np.asarray(lse[9:]).any()
    loss = lambda q: (attend(q, k, v) ** 2).sum()  # noqa: E731
    np.testing.assert_array_equal(jax.grad(jax.checkpoint(loss))(q), jax.grad(loss)(q))


BLOCKS, BLOCK = 11, 3
TABLE_K = np.array([[9, 2, 5, -1], [77, -7, 0, 0], [10, 3, 99, -1]])
TABLE_V = np.array([[1, 8, 4, 50], [0, 0, 0, 0], [6, 7, -3, 11]])
CACHED = np.array([7, 0, 4])


def paged_tensors():
    q, k, v = draw((3, 5, HEADS, DIM), (BLOCKS, BLOCK, HEADS_KV, DIM), (BLOCKS, BLOCK, HEADS_KV, 6))
    # A block that belongs to nobody may hold anything.
    return q, k.at[0].set(jnp.nan), v.at[0].set(jnp.nan)


def decode(q, k, v, tables=(TABLE_K, TABLE_V), lengths=CACHED, **options):
    # As many biases as there are sequences.
    score = lambda s, b, h, q_idx, kv_idx: 3 * jnp.tanh(s) + jnp.asarray(BIAS[:3])[b, h] * jnp.float32(q_idx - kv_idx)  # noqa: E731
    return flex_attention(q, k, v, score, mask_mod, page_table=tables, lengths=lengths, **options)


def paged_by_itself(q, k, v):
    out = []
    for b, n in enumerate(CACHED):
        of_k, of_v = (jnp.concatenate([x[i] for i in table[b, : -(-n // BLOCK)]])[:n] if n else x[1][:0] for x, table in ((k, TABLE_K), (v, TABLE_V)))
        out.append(dense_sequence(q[b], of_k, of_v, b))
    return jnp.stack(out)


@pytest.mark.parametrize("backend", ["cpu", "xla"])
def test_keys_are_read_through_page_tables(backend):
    q, k, v = paged_tensors()
    assert_near(decode(q, k, v, backend=backend), paged_by_itself(q, k, v), in_float64(paged_by_itself, q, k, v))
    # One table for both, another layout, and a jitted call.
    found = jax.jit(lambda *x: flex_attention(*x[:3], page_table=x[3], lengths=x[4], layout="BHSD", backend=backend))(
        *(jnp.transpose(x, (0, 2, 1, 3)) for x in (q, k, v)), TABLE_K, CACHED
    )
    expected = flex_attention(q, k, v, page_table=TABLE_K, lengths=CACHED, backend=backend)
    np.testing.assert_allclose(jnp.transpose(found, (0, 2, 1, 3)), expected, rtol=1e-5, atol=1e-6)
    gradient = jax.grad(lambda k: decode(q, k, v, backend=backend).sum())(k)
    used = sorted({int(i) for b, n in enumerate(CACHED) for i in TABLE_K[b, : -(-n // BLOCK)]})
    assert [i for i in range(BLOCKS) if np.asarray(gradient)[i].any()] == used


def test_faults_would_be_seen():
    q, k, v, _ = ragged_tensors()
    o = attend(q, k, v)
    for q_offsets, kv_offsets in (([0, 5, 5, 9, 11], KV_OFFSETS), (Q_OFFSETS, [0, 4, 5, 12, 12])):
        other = attend(q, k, v, np.array(q_offsets), np.array(kv_offsets))
        assert np.linalg.norm(o - other) > 0.05 * np.linalg.norm(o)
    q, k, v = paged_tensors()
    o = decode(q, k, v)
    swapped = TABLE_K.copy()
    swapped[0, :2] = swapped[0, 1::-1]
    for other in (decode(q, k, v, (swapped, TABLE_V)), decode(q, k, v, lengths=np.array([6, 0, 4]))):
        assert np.linalg.norm(o - other) > 0.05 * np.linalg.norm(o)


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(layout="BSHD", q_offsets=Q_OFFSETS), 'layout: expected "THD"'),
        (dict(layout="THD", kv_offsets=Q_OFFSETS), "kv_offsets: expected q_offsets beside them"),
        (dict(layout="THD", q_offsets=np.array([0, 12])), "q_offsets: expected numbers from 0 to 11"),
        (dict(layout="THD", q_offsets=np.array([0, 5, 4, 11])), "that do not descend"),
        (dict(layout="THD", q_offsets=np.array([0.0, 5])), "q_offsets: expected an integer array"),
        (dict(layout="THD", q_offsets=Q_OFFSETS, kv_offsets=KV_OFFSETS[1:]), "kv_offsets: expected as many as q_offsets, 5, found 4"),
        (dict(layout="THD", q_offsets=Q_OFFSETS, page_table=TABLE_K), r"key: expected 4 dimensions .pages, page size, heads, dim. with page_table"),
        (dict(layout="THD", q_offsets=Q_OFFSETS + 2**32, kv_offsets=KV_OFFSETS), "q_offsets: expected integers from .* found 4294967296"),
        (
            dict(layout="THD", q_offsets=Q_OFFSETS, kv_offsets=KV_OFFSETS, lengths=np.array([3, 2, 8, 0])),
            "lengths: expected a number from 0 to 7, .* batch 2; found 8",
        ),
    ],
)
def test_mistakes(options, message):
    q, k, v, _ = ragged_tensors()
    with pytest.raises(scoremod.InvalidArgumentError, match=message):
        flex_attention(q, k, v, **options)


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(page_table=TABLE_K), "page_table: expected lengths of the keys"),
        (dict(page_table=TABLE_K[:2], lengths=CACHED), "with batch 3, found int64 of shape \\(2, 4\\)|with batch 3, found int32 of shape \\(2, 4\\)"),
        (dict(page_table=TABLE_K.astype(float), lengths=CACHED), "page_table: expected an integer array"),
        (dict(page_table=[TABLE_K] * 3, lengths=CACHED), "expected one table or a pair"),
        (dict(page_table=TABLE_K, lengths=np.array([7, 0, 13])), "lengths: expected a number from 0 to 12, .* batch 2; found 13"),
        (dict(page_table=TABLE_K, lengths=np.array([-1, 0, 4])), "lengths: expected a number from 0 to 12, .* batch 0; found -1"),
        (dict(page_table=TABLE_K, lengths=CACHED.astype(np.int64) + 2**32), "lengths: expected a number from 0 to 12, .* found 4294967303"),
        (
            dict(page_table=TABLE_K, lengths=np.array([10, 0, 4])),
            r"page_table: expected blocks from 0 to 10, found -1 at \[0, 3\], which holds keys below .* of 10",
        ),
        (dict(page_table=(TABLE_K, TABLE_V), lengths=np.array([7, 1, 4])), r"page_table: expected blocks from 0 to 10, found 77 at \[1, 0\]"),
        (
            dict(page_table=(TABLE_K, TABLE_V[:, :1]), lengths=CACHED),
            "page_table: expected as many blocks of a sequence for keys and for values, found . and 1; pad",
        ),
        (dict(page_table=(TABLE_K, TABLE_V + 2**32), lengths=CACHED), r"page_table: expected blocks from 0 to 10, found 4294967297 at \[0, 0\]"),
    ],
)
def test_mistakes_of_tables(options, message):
    q, k, v = paged_tensors()
    with pytest.raises(scoremod.InvalidArgumentError, match=message):
        flex_attention(q, k, v, **options)


@pytest.mark.parametrize(
    "shape_q, shape_kv", [((2, 3, 4, 8), (2, 0, 2, 8)), ((2, 0, 4, 8), (2, 5, 2, 8)), ((0, 3, 4, 8), (0, 5, 2, 8)), ((2, 3, 0, 8), (2, 5, 0, 8))]
)
def test_what_is_empty_is_what_rows_without_keys_are(shape_q, shape_kv):
    q, kv = jnp.ones(shape_q), jnp.ones(shape_kv)
    o, lse, largest = jax.jit(lambda q, kv: flex_attention(q, kv, kv, score_mod, return_lse=True, return_max_logit=True))(q, kv)
    assert o.shape == shape_q and not np.asarray(o).any()
    assert lse.shape == largest.shape == (shape_q[0], shape_q[2], shape_q[1]) and np.isneginf(lse).all() and np.isneginf(largest).all()
    gradients = jax.grad(lambda q, kv: flex_attention(q, kv, kv, score_mod).sum(), argnums=(0, 1))(q, kv)
    assert [x.shape for x in gradients] == [shape_q, shape_kv] and not any(np.asarray(x).any() for x in gradients)
    sunk = flex_attention(q, kv, kv, sink=jnp.ones(shape_q[2]), return_lse=True)[1]
    np.testing.assert_array_equal(sunk, np.ones(sunk.shape))
    with pytest.raises(scoremod.InvalidArgumentError, match="multiple of key's 0" if shape_q[2] else "found"):
        flex_attention(jnp.ones((2, 3, 4, 8)), jnp.ones((2, 5, 0, 8)), jnp.ones((2, 5, 0, 8)))


BAD_TABLE = TABLE_K.copy()
BAD_TABLE[0, 1] = BLOCKS + 1


@pytest.mark.parametrize("mode", ["alone", "jax.grad", "jax.vjp in a loss"])
def test_wrong_blocks_are_refused_under_gradients_too(mode):
    q, k, v = paged_tensors()
    call = lambda q: flex_attention(q, k, v, page_table=BAD_TABLE, lengths=CACHED).sum()  # noqa: E731
    run = {"alone": call, "jax.grad": jax.grad(call), "jax.vjp in a loss": lambda q: jax.vjp(call, q)[1](1.0)}[mode]
    with pytest.raises(scoremod.InvalidArgumentError, match=r"page_table: expected blocks from 0 to 10, found 12 at \[0, 1\]"):
        run(q)


@pytest.mark.parametrize("table, lengths", [(BAD_TABLE, CACHED), (TABLE_K, CACHED + 100), (TABLE_K, CACHED - 100)])
def test_on_the_cpu_traced_blocks_and_lengths_are_refused_at_the_call(table, lengths):
    q, k, v = paged_tensors()
    run = jax.jit(lambda table, lengths: flex_attention(q, k, v, page_table=table, lengths=lengths, backend="cpu"))
    run(TABLE_K, CACHED)
    with pytest.raises(Exception, match="INVALID_ARGUMENT.*(expected blocks from 0 to 10, found 12|expected lengths|expected a length)"):
        jax.block_until_ready(run(table, lengths))


@pytest.mark.parametrize("backend", ["cpu", "xla"])
def test_gathered_sequences_end_before_a_block_that_is_not_there(backend):
    """No other sequence's keys are read: the results are those of a shorter sequence."""
    q, k, v = paged_tensors()
    shorter = np.array([BLOCK, 0, 4])

    def results(q, k, v, table, lengths):
        attend = lambda *x: flex_attention(*x, page_table=table, lengths=lengths, backend=backend)  # noqa: E731
        return jax.value_and_grad(lambda *x: (attend(*x) ** 2).sum(), argnums=(0, 1, 2))(q, k, v)

    found, want = jax.jit(results)(q, k, v, BAD_TABLE, CACHED), jax.jit(results)(q, k, v, TABLE_K, shorter)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def test_a_mapped_block_that_is_not_there_stays_one():
    """With a pool for each mapped call, it would be a block of the next call's pool."""
    q, k, v = paged_tensors()
    run = jax.jit(jax.vmap(lambda q, k, v, table: flex_attention(q, k, v, page_table=table, lengths=CACHED, backend="cpu")))
    both = [jnp.stack([x, x]) for x in (q, k, v)]
    run(*both, np.stack([TABLE_K, TABLE_K]))
    with pytest.raises(Exception, match="INVALID_ARGUMENT.*expected blocks from 0 to 21, found -1"):
        jax.block_until_ready(run(*both, np.stack([BAD_TABLE, TABLE_K])))
