"""Mixed batches: prefill, chunks of it and decode steps in one call over a paged KV cache, against each sequence by itself in float64."""

import functools
import os
import secrets

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scoremod
from scoremod.jax import explain, flex_attention, own_fields


SEED = int(os.environ.get("SCOREMOD_TEST_SEED") or secrets.randbelow(2**31))


@pytest.fixture
def seed():
    print(f"SCOREMOD_TEST_SEED={SEED}")
    return SEED


def draw(seed):
    """(query, key, value, slopes, arrays of the places): sequences with one query, with many, with more queries than keys, with none, and with no keys.
    Pages lie in any order, some of which two sequences share, among pages of NaN."""
    rng = np.random.default_rng(seed)
    batch, page, width = rng.integers(1, 5), rng.choice([1, 3, 4]), rng.integers(1, 4)
    heads_kv, group, dim = rng.integers(1, 3), rng.integers(1, 3), rng.choice([4, 8])
    queries = np.where(rng.random(batch) < 0.6, rng.integers(0, 2, batch), rng.integers(2, 8, batch))
    queries[rng.integers(batch)] += 1
    lengths = np.minimum(np.where(rng.random(batch) < 0.3, queries, rng.integers(0, width * page + 1, batch)), width * page)
    pages = batch * width + 2
    table = rng.permutation(pages)[: batch * width].reshape(batch, width)
    if batch > 1 and lengths[:2].min() > 0:
        table[1, 0] = table[0, 0]  # a prompt that two have
    used = np.arange(width) * page < lengths[:, None]
    key, value = (rng.standard_normal((pages, page, heads_kv, n)).astype(np.float32) for n in (dim, 6))
    for pool in (key, value):
        pool[np.setdiff1d(np.arange(pages), table[used])] = np.nan
    before, after = [(0, 0), (2, 1), (0, 2)][rng.integers(3)]
    offsets = np.cumsum([0, *queries]) + before
    query = rng.standard_normal((offsets[-1] + after, heads_kv * group, dim)).astype(np.float32)
    slopes = rng.standard_normal((batch, heads_kv * group)).astype(np.float32)
    places = {"q_offsets": offsets, "page_table": np.where(used, table, 99).astype(np.int32), "lengths": lengths}
    return *map(jnp.asarray, (query, key, value, slopes)), {name: each.astype(np.int32) for name, each in places.items()}


def attend(query, key, value, slopes, places, window=4, **options):
    def score_mod(s, b, h, q_idx, kv_idx):
        return 3 * jnp.tanh(s / 3) + slopes[b, h] * (kv_idx - q_idx).astype(jnp.float32)

    def mask_mod(b, h, q_idx, kv_idx):
        return (q_idx >= kv_idx) & (q_idx - kv_idx < window)

    return flex_attention(query, key, value, score_mod, mask_mod, layout="THD", q_start="bottom_right", return_lse=True, **places, **options)


def one_by_one(query, key, value, slopes, places, window=4, jnp=jnp):
    """(o, lse) as the definition reads, each sequence's last query at its last key. jnp: NumPy does, too."""
    group = query.shape[1] // key.shape[2]
    offsets, page, parts = places["q_offsets"], key.shape[1], []

    def none(first, end):
        return jnp.zeros((end - first, query.shape[1], value.shape[3]), query.dtype), jnp.full((end - first, query.shape[1]), -np.inf, query.dtype)

    parts.append(none(0, offsets[0]))
    for b, length in enumerate(places["lengths"]):
        first, end = offsets[b], offsets[b + 1]
        if first == end or length == 0:
            parts.append(none(first, end))
            continue
        pages = places["page_table"][b, : -(-length // page)]
        k, v = (jnp.repeat(pool[pages].reshape(-1, *pool.shape[2:])[:length], group, 1) for pool in (key, value))
        i, j = np.arange(end - first)[:, None] + length - (end - first), np.arange(length)
        scores = 3 * jnp.tanh(jnp.einsum("qhd,khd->hqk", query[first:end], k) / np.sqrt(query.shape[2]) / 3) + slopes[b][:, None, None] * (j - i)
        keep = (i >= j) & (i - j < window)
        has_keys = keep.any(-1)[:, None]
        terms = jnp.where(keep, jnp.exp(scores), 0)
        sums = jnp.where(has_keys[:, 0], terms.sum(-1), 1)
        parts.append((jnp.einsum("hqk,khd->qhd", terms / sums[..., None], v), jnp.where(has_keys, jnp.log(sums).T, -np.inf)))
    parts.append(none(offsets[-1], query.shape[0]))
    return tuple(map(jnp.concatenate, zip(*parts)))


def plain_and_true(given, places):
    """one_by_one() in float32 and in float64."""
    given = list(map(np.asarray, given))
    return [one_by_one(*(x.astype(dtype) for x in given), places, jnp=np) for dtype in (np.float32, np.float64)]


def in_float64(function, *arrays):
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, function(*(jnp.asarray(np.asarray(x), jnp.float64) for x in arrays)))


def assert_near(found, plain, truth):
    """Twice as far from float64 as plain float32, and some roundings; -inf in the same places."""
    found, plain = np.asarray(found, np.float64), np.asarray(plain, np.float64)
    finite = np.isfinite(truth)
    np.testing.assert_array_equal(np.isfinite(found), finite)
    found, plain, truth = found[finite], plain[finite], truth[finite]
    assert np.linalg.norm(found - truth) <= 2 * np.linalg.norm(plain - truth) + 32 * 2**-24 * np.linalg.norm(truth)


@pytest.fixture
def roads(monkeypatch):
    """Whether each call's places are fields of its problem."""
    taken, ask = [], own_fields.takes_own_fields

    def seen(traced, memory):
        taken.append((traced.call.is_ragged and traced.call.is_paged, ask(traced, memory)))
        return taken[-1][1]

    monkeypatch.setattr("scoremod.jax.api.takes_own_fields", seen)
    return taken


@pytest.mark.parametrize("backend", ["cpu", "xla"])
def test_random_mixed_batches(backend, seed, roads):
    for number in range(3 if backend == "cpu" else 1):
        print("draw", number)
        *given, places = draw(seed + number)
        known = functools.partial(attend, places=places, backend=backend)
        plain, truth = plain_and_true(given, places)
        for found in (known(*given), jax.jit(lambda *x: attend(*x, backend=backend))(*given, places)):
            for each in zip(found, plain, truth, strict=True):
                assert_near(*each)
    assert roads == ([(True, True)] * 6 if backend == "cpu" else [])


@pytest.mark.parametrize("backend", ["cpu", "xla"])
def test_gradients_are_those_of_gathered_keys(backend, seed):
    for number in range(1):
        print("draw", number)
        *given, places = draw(seed + number)
        weights = np.random.default_rng(seed).standard_normal((*given[0].shape[:2], 6))

        def gradients(function, *arrays):
            def loss(*arrays):
                o, lse = function(*arrays)
                return (o * weights.astype(o.dtype)).sum() + jnp.where(jnp.isfinite(lse), lse, 0).sum()  # noqa: B023

            return jax.grad(loss, argnums=(0, 1, 2, 3))(*arrays)

        plain = gradients(lambda *x: one_by_one(*x, places), *given)  # noqa: B023
        truth = in_float64(lambda *x: gradients(lambda *x: one_by_one(*x, places), *x), *given)  # noqa: B023
        # Under jit nobody knows the places.
        found = jax.jit(lambda places, *x: gradients(lambda *x: attend(*x, places, backend=backend), *x))(places, *given)
        for each in zip(found, plain, truth, strict=True):
            assert_near(*each)


def test_a_fault_would_be_seen(seed):
    *given, places = next(each for each in (draw(seed + n) for n in range(1000)) if (each[-1]["lengths"] > np.diff(each[-1]["q_offsets"])).all())
    plain, truth = plain_and_true(given, places)
    for faulty in (places | {"lengths": places["lengths"] - 1},):
        with pytest.raises(AssertionError):
            for each in zip(attend(*given, faulty), plain, truth, strict=True):
                assert_near(*each)


def test_one_jitted_function_serves_other_batches(seed):
    """The places are arguments: other lengths, tables and offsets of the same shapes trace nothing."""
    traced = []

    @jax.jit
    def run(query, key, value, slopes, places):
        traced.append(None)
        return attend(query, key, value, slopes, places)[0]

    *given, places = draw(seed)
    rng = np.random.default_rng(seed)
    for _ in range(4):
        cuts = np.sort(rng.integers(0, given[0].shape[0] + 1, len(places["lengths"]) - 1))
        places = places | {"q_offsets": np.array([0, *cuts, given[0].shape[0]], np.int32), "lengths": np.minimum(places["lengths"], rng.integers(0, 9))}
        np.testing.assert_allclose(run(*given, places), plain_and_true(given, places)[0][0], atol=2e-5)
    assert len(traced) == 1


def test_maps_share_the_pages(seed):
    *given, places = draw(seed)
    query, key, value, slopes = given
    many = jnp.stack([query, 2 * query, -query])
    for x, q in zip(jax.vmap(lambda q: attend(q, key, value, slopes, places)[0])(many), many):
        np.testing.assert_allclose(x, attend(q, key, value, slopes, places)[0], atol=2e-5)
    lengths = np.stack([places["lengths"], places["lengths"] // 2])
    for x, n in zip(jax.vmap(lambda n: attend(*given, places | {"lengths": n})[0])(lengths), lengths):
        np.testing.assert_allclose(x, attend(*given, places | {"lengths": n})[0], atol=2e-5)


def arguments(**changed):
    query, pool = jnp.ones((7, 4, 8)), jnp.ones((6, 4, 2, 8))
    given = dict(
        query=query, key=pool, value=pool, layout="THD", q_offsets=np.array([0, 1, 7]), page_table=np.array([[0, 1], [2, 3]]), lengths=np.array([5, 8])
    )  # fmt: skip
    return given | changed


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (dict(page_table=np.array([[0, 1], [2, 6]])), r"page_table: expected blocks from 0 to 5, found 6 at \[1, 1\]"),
        (dict(page_table=np.array([[0, -1], [2, 3]])), r"page_table: expected blocks from 0 to 5, found -1 at \[0, 1\]"),
        (dict(lengths=np.array([-1, 8])), "lengths: expected a number from 0 to 8, the positions there are, for batch 0; found -1"),
        (dict(lengths=np.array([5, 9])), "lengths: expected a number from 0 to 8, the positions there are, for batch 1; found 9"),
        (dict(lengths=np.array([5, 8, 1])), r"lengths: expected an integer array of shape \(2,\)"),
        (dict(lengths=None), "page_table: expected lengths of the keys beside it"),
        (dict(kv_offsets=np.array([0, 5, 13])), "page_table: expected no kv_offsets beside it"),
        (dict(q_offsets=np.array([0, 5, 3])), "q_offsets: expected numbers from 0 to 7"),
        (dict(q_offsets=np.array([0, 1, 4, 7])), "page_table: expected an integer array .* with batch 3"),
        (dict(layout="BSHD"), 'layout: expected "THD"'),
        (dict(query=jnp.ones((1, 7, 4, 8))), r"query: expected 3 dimensions \(tokens, heads, dim\)"),
        (dict(key=jnp.ones((24, 2, 8))), r"key: expected 4 dimensions \(pages, page size, heads, dim\) with page_table"),
        (dict(max_length=5), "max_length: expected at least the 6 tokens"),
        (dict(q_start=np.array([0, -2])), "q_start: expected indices from 0, found -2 of batch 1"),
        (dict(q_start=np.array([0, 1, 2])), r"q_start: expected a 32-bit integer from 0 on, integers of shape \(2,\), one for each batch"),
        (dict(q_start="end"), 'q_start: expected integers or "bottom_right", found .end.'),
        (dict(q_start=3, mask_mod="causal_bottom_right"), "expected no q_start beside it"),
        (dict(mask_mod="causal_window"), 'mask_mod: expected a function, "causal" or "causal_bottom_right"'),
    ],
)
def test_what_does_not_fit_is_refused(changed, message):
    with pytest.raises(scoremod.InvalidArgumentError, match=message):
        flex_attention(**arguments(**changed))


def test_pages_that_the_pool_lacks_are_refused_where_the_call_runs():
    """Under jit nobody knows the table before."""
    run = jax.jit(lambda table: flex_attention(**arguments(page_table=table), backend="cpu"))
    run(np.array([[0, 1], [2, 3]])).block_until_ready()
    with pytest.raises(Exception, match="page_table"):
        run(np.array([[0, 1], [2, 6]])).block_until_ready()


def test_explain_has_the_fields_of_a_mixed_batch():
    found = explain(**arguments(), mask_mod="causal_bottom_right")
    assert found.road == own_fields.FIELDS and found.problem["tokens_q"] == 7 and found.problem["paged"]["block_size"] == 4


def test_where_queries_stand():
    """Dense tensors, varlen ones and pages, from shapes, lengths and offsets."""
    rng = np.random.default_rng(3)
    q, k = (jnp.asarray(rng.standard_normal((2, n, 2, 8)), jnp.float32) for n in (3, 7))
    run = functools.partial(flex_attention, q, k, k)
    for options, shift in (
        ({}, [4, 4]),
        (dict(lengths=np.array([5, 2])), [2, -1]),
        (dict(lengths=(np.array([2, 3]), np.array([5, 2]))), [3, -1]),
        (dict(lengths=(np.array([2, 3]), None)), [5, 4]),
    ):
        shift = jnp.asarray(shift)
        expected = run(mask_mod=lambda b, h, i, j: i + shift[b] >= j, **options)  # noqa: B023
        np.testing.assert_allclose(run(mask_mod="causal_bottom_right", **options), expected, atol=1e-6)
    np.testing.assert_allclose(run(mask_mod="causal", q_start=4), run(mask_mod="causal_bottom_right"), atol=1e-6)
    np.testing.assert_allclose(jax.jit(lambda n: run(mask_mod="causal", q_start=n))(np.array([4, 4])), run(mask_mod="causal_bottom_right"), atol=1e-6)
    o, lse = flex_attention(k, q, q, mask_mod="causal_bottom_right", return_lse=True)
    assert np.isneginf(lse[:, :, :4]).all() and np.isfinite(lse[:, :, 4:]).all() and not o[:, :4].any()
    tokens = (x.reshape(-1, 2, 8) for x in (q, k, k))
    ragged = flex_attention(*tokens, mask_mod="causal_bottom_right", layout="THD", q_offsets=[0, 3, 6], kv_offsets=[0, 7, 14])
    np.testing.assert_allclose(ragged.reshape(q.shape), run(mask_mod="causal_bottom_right"), atol=1e-6)
