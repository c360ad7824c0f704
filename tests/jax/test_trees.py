"""Trees of draft tokens over paged caches: random trees against a walk from each draft to its root in float64, and speculative decoding with a model."""

import functools
import os
import secrets

import jax
import numpy as np
import pytest
from drafted_requests import DRAFTS, SLOPES, STEPS, alibi, forward, path, plain_forward, requests, speculative

import scoremod
from scoremod.jax import at_tree_depths, flex_attention, tree_depths, tree_mask, zoo

SEED = int(os.environ.get("SCOREMOD_TEST_SEED") or secrets.randbelow(2**31))


@pytest.fixture
def seed(request):
    """A number of the run's seed and the test's name, which a failed test prints."""
    print(f"SCOREMOD_TEST_SEED={SEED}")
    return SEED + sum(map(ord, request.node.name))


def drawn_parents(rng, drafts):
    """A chain, a star, a forest with several roots or any tree, whose parents stand anywhere."""
    kind = rng.choice(["chain", "star", "forest", "any"])
    order, placed = rng.permutation(drafts) if rng.random() < 0.5 else np.arange(drafts), np.full(drafts, -1)
    for draft in range(1, drafts):
        parent = {"chain": draft - 1, "star": 0}.get(kind, rng.integers(draft))
        if kind != "forest" or rng.random() < 0.7:
            placed[order[draft]] = order[parent]
    return placed


class Step:
    """One step of a batch: trees of counts[b] drafts, padded to the most of them with roots, after cached[b] keys, in shuffled pages among others of NaN."""

    def __init__(self, seed, drafts, batch=3, page=4, is_ragged=False, width=None):
        rng = np.random.default_rng(seed)
        self.counts = rng.integers(0, drafts + 1, batch) if is_ragged else np.full(batch, drafts)
        self.counts[rng.integers(batch)] = drafts
        self.cached = rng.choice([0, drafts, rng.integers(1, 30)], batch).astype(np.int32)
        self.parents = np.stack([np.append(drawn_parents(rng, n), [-1] * (drafts - n)) for n in self.counts]).astype(np.int32)
        self.lengths = (self.cached + self.counts).astype(np.int32)
        width = width or -(-self.lengths.max() // page) + 1
        self.table = rng.permutation(batch * width + 2)[: batch * width].reshape(batch, width).astype(np.int32)
        self.pools = rng.standard_normal((2, batch * width + 2, page, 2, 16)).astype(np.float32)
        read = [self.table[b, : -(-n // page)] for b, n in enumerate(self.lengths)]
        self.pools[:, np.setdiff1d(np.arange(batch * width + 2), np.concatenate(read))] = np.nan
        self.query = rng.standard_normal((batch, drafts, 4, 16)).astype(np.float32)
        self.rows = np.arange(drafts) < self.counts[:, None]

    @property
    def arrays(self):
        return self.query, *self.pools, self.parents, self.cached, self.table, self.lengths

    def expected(self, bias=None):
        """bias(head, position of the query, of the key): positions in the text, of which each path has those of plain decoding. Query by query."""
        rows = []
        for b, (count, first) in enumerate(zip(self.counts, self.cached)):
            k, v = (pool[self.table[b]].reshape(-1, 2, 16).astype(np.float64) for pool in self.pools)
            for draft in range(count):
                keys = [*range(first), *(first + each for each in path(self.parents[b], draft)[::-1])]
                row = []
                for h in range(4):
                    scores = k[keys, h // 2] @ self.query[b, draft, h].astype(np.float64) / 4
                    scores = scores if bias is None else scores + bias(h, len(keys) - 1, np.arange(len(keys)))
                    weights = np.exp(scores - scores.max())
                    row.append(weights / weights.sum() @ v[keys, h // 2])
                rows.append(row)
        return np.array(rows)


def slope(h, i, j):
    return SLOPES[h] * (j - i).astype(np.float64)


def verify(query, key, value, parents, cached, table, lengths, score_mod=None, mask_mod=None, q_start=None, **options):
    return flex_attention(
        query, key, value, score_mod, tree_mask(parents, cached) if mask_mod is None else mask_mod, q_start=cached if q_start is None else q_start,
        page_table=table, lengths=lengths, **options,
    )  # fmt: skip


def varlen(step, **options):
    offsets = np.cumsum([0, *step.counts]).astype(np.int32)
    return verify(step.query[step.rows], *step.arrays[1:], q_offsets=offsets, layout="THD", **options)


def assert_near(found, expected):
    np.testing.assert_allclose(np.asarray(found, np.float64), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("drafts", [1, 2, 13, 64])
def test_random_trees(drafts, seed):
    step = Step(seed, drafts)
    assert_near(verify(*step.arrays)[step.rows], step.expected())
    assert_near(verify(*step.arrays, q_start="bottom_right")[step.rows], step.expected())
    assert_near(jax.jit(verify)(*step.arrays)[step.rows], step.expected())


@pytest.mark.parametrize("parents", [[*range(-1, 63)], [-1] + [0] * 63, [-1] * 64], ids=["chain", "star", "roots"])
def test_the_extreme_trees(parents, seed):
    step = Step(seed, 64)
    step.parents[:] = parents
    ancestors = np.array([[j in path(parents, i) for j in range(64)] for i in range(64)])
    # One tree for all, lists, and the tables that users have.
    for tree in (step.parents, parents, ancestors, np.stack([ancestors & ~np.eye(64, dtype=bool)] * 3)):
        found = verify(*step.arrays, mask_mod=tree_mask(tree, step.cached))
        assert_near(found[step.rows], step.expected())


@pytest.mark.parametrize("backend", ["cpu", "xla"])
def test_trees_of_unlike_sizes(backend, seed):
    step = Step(seed, 9, is_ragged=True)
    assert_near(varlen(step, backend=backend), step.expected())
    assert_near(varlen(step, q_start="bottom_right", backend=backend), step.expected())
    assert_near(verify(*step.arrays, backend=backend)[step.rows], step.expected())  # padded


def test_scores_and_windows_at_depths_are_those_of_plain_decoding(seed):
    step = Step(seed, 11, is_ragged=True)

    @jax.jit
    def run(*arrays):
        at, mask_mod = arrays[3:5], tree_mask(*arrays[3:5])
        window = at_tree_depths(lambda b, h, q_idx, kv_idx: q_idx - kv_idx < 3, *at)
        return verify(*arrays, at_tree_depths(alibi, *at)), verify(*arrays, mask_mod=zoo.all_of(mask_mod, window))

    biased, windowed = run(*step.arrays)
    assert_near(biased[step.rows], step.expected(slope))
    assert_near(windowed[step.rows], step.expected(lambda h, i, j: np.where(i - j < 3, 0, -np.inf)))
    assert_near(varlen(step, score_mod=at_tree_depths(alibi, step.parents, step.cached)), step.expected(slope))
    depths = [[len(path(tree, draft)) - 1 for draft in range(11)] for tree in step.parents]
    assert tree_depths(step.parents).tolist() == depths and jax.jit(tree_depths)(step.parents[0]).tolist() == depths[0]


def test_a_wrong_tree_would_be_seen(seed):
    """A draft that hangs elsewhere, cached keys that are one off, queries that stand elsewhere, and depths that are places."""
    several = (Step(seed + n, 7, width=10) for n in range(1000))
    step = next(s for s in several if (tree_depths(s.parents) != np.arange(7)).any(1).all() and (s.parents[0] >= 0).any() and (s.cached >= 7).any())
    other = step.parents.copy()
    other[0, np.argmax(other[0] >= 0)] = -1
    for changed in (
        {"mask_mod": tree_mask(other, step.cached)},
        {"mask_mod": tree_mask(step.parents, step.cached + 1)},
        {"q_start": 0},
        {"mask_mod": "causal"},
    ):
        with pytest.raises(AssertionError):
            assert_near(verify(*step.arrays, **changed)[step.rows], step.expected())
    with pytest.raises(AssertionError):
        moved = at_tree_depths(alibi, np.arange(-1, 6), step.cached)
        assert_near(verify(*step.arrays, moved)[step.rows], step.expected(slope))


def test_no_tree_traces_or_compiles_anything(seed):
    traced = []

    @jax.jit
    def run(*arrays):
        traced.append(None)
        return verify(*arrays)

    for number in range(4):
        step = Step(seed + number, 6, width=10)
        assert_near(run(*step.arrays)[step.rows], step.expected())
    assert len(traced) == 1


def test_no_number_of_drafts_compiles_anything(seed):
    """XLA compiles a program for each size; what it asks scoremod for is compiled once."""
    verify(*Step(seed, 3, batch=4).arrays)
    before = scoremod.cache.statistics()["compiled"]["problems"]
    for drafts in (2, 5, 9, 64):
        step = Step(seed + drafts, drafts, batch=drafts % 3 + 2)
        assert_near(verify(*step.arrays)[step.rows], step.expected())
    assert scoremod.cache.statistics()["compiled"]["problems"] == before


@pytest.mark.parametrize(
    ("tree", "cached", "message"),
    [
        ([[-1, 0, 3]], [4], r"tree: expected parents from -1, for a root, to 2, the last draft; found 3 at \[0, 2\]"),
        ([[-1, -2, 1]], [4], r"found -2 at \[0, 1\]"),
        ([-1, 2, 1], [4], r"tree: expected parents that lead to a root, -1; found draft \[1\] among its own ancestors"),
        ([[0, 0]], [4], r"found draft \[0, 0\] among its own ancestors"),
        (np.ones((1, 1, 3, 3)), [4], r"tree: expected parents, integers .batch, drafts., or ancestors, bool .* found float32 of shape"),
        (np.ones((1, 3, 2), bool), [4], "found bool of shape"),
        ([[-1, 0]], [4, 5], r"cached: expected 1 integers, one for each batch of tree; found int32 of shape \(2,\)"),
        ([-1, 0], [4.0], r"cached: expected integers \[batch\]; found float32"),
        ([-1, 0], 4, r"cached: expected integers \[batch\]; found int32 of shape \(\)"),
    ],
)
@pytest.mark.parametrize("function", [tree_mask, functools.partial(at_tree_depths, alibi)], ids=["mask", "depths"])
def test_what_is_no_tree_is_refused(function, tree, cached, message):
    with pytest.raises(scoremod.InvalidArgumentError, match=message):
        function(tree, cached)


def test_speculative_decoding_makes_the_tokens_of_plain_decoding(seed):
    model, prompts, truth = requests(seed)
    found, seen = speculative(plain_forward, model, prompts, truth, np.random.default_rng(seed))
    assert found == [tokens[:STEPS] for tokens in truth]
    assert max(seen) > 1 and min(seen) < DRAFTS - 1


def test_decoding_with_a_wrong_tree_would_be_seen(seed):
    """Drafts that see each other as if they were a chain."""
    model, prompts, truth = requests(seed)
    wrong = jax.jit(functools.partial(forward, lambda parents, cached: "causal"))
    found = [speculative(wrong, model, prompts, truth, np.random.default_rng(seed + n))[0] for n in range(4)]
    assert any(each != [tokens[:STEPS] for tokens in truth] for each in found)
