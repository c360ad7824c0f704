"""Trees of draft tokens over paged caches: random trees against a walk from each draft to its root in float64, and speculative decoding with a model."""

import math
import random as pseudo_random

import pytest
import torch
import torch.fx.experimental._config
from drafted_requests import SLOPES, STEPS, alibi, path, requests, speculative

import scoremod
from scoremod.torch import and_masks, at_tree_depths, flex_attention, tree_depths, tree_mask


def drawn_parents(choose, drafts):
    """A chain, a star, a forest with several roots or any tree, whose parents stand anywhere."""
    kind = choose.choice(["chain", "star", "forest", "any"])
    parents = [-1]
    for draft in range(1, drafts):
        root = -1 if kind == "forest" and choose.random() < 0.3 else choose.randrange(draft)
        parents.append({"chain": draft - 1, "star": 0}.get(kind, root))
    order = choose.sample(range(drafts), drafts) if choose.random() < 0.5 else list(range(drafts))
    placed = [-1] * drafts
    for draft, parent in enumerate(parents):
        placed[order[draft]] = -1 if parent < 0 else order[parent]
    return placed


class Step:
    """One step of a batch: trees of counts[b] drafts, padded to the most of them with roots, after cached[b] keys, in shuffled pages among others of NaN."""

    def __init__(self, seed, drafts=None, is_ragged=False, batch=None, page=None):
        choose, random = pseudo_random.Random(seed), torch.Generator().manual_seed(seed)
        batch, page = batch or choose.randint(1, 4), page or choose.choice([1, 4, 5])
        most = drafts or choose.choice([1, 2, choose.randint(3, 20), 64])
        self.counts = [choose.randint(0, most) if is_ragged else most for _ in range(batch)]
        self.counts[choose.randrange(batch)] = most
        self.cached = torch.tensor([choose.choice([0, choose.randint(1, 40), most]) for _ in range(batch)])
        trees = [drawn_parents(choose, count) if count else [] for count in self.counts]
        self.parents = torch.tensor([tree + [-1] * (most - len(tree)) for tree in trees])
        self.lengths = self.cached + torch.tensor(self.counts)
        width = -(-int(self.lengths.max()) // page) + 1
        self.table = torch.randperm(batch * width + 2, generator=random)[: batch * width].view(batch, width)
        self.pools = [torch.randn(batch * width + 2, 2, page, 16, generator=random) for _ in "kv"]
        unread = torch.ones(batch * width + 2, dtype=torch.bool)
        for row, length in zip(self.table, self.lengths.tolist()):
            unread[row[: -(-length // page)]] = False
        for pool in self.pools:
            pool[unread] = torch.nan
        self.query = torch.randn(batch, 4, most, 16, generator=random)
        self.rows = torch.arange(most) < torch.tensor(self.counts)[:, None]

    @property
    def places(self):
        return {"page_table": self.table, "lengths": self.lengths, "enable_gqa": True}

    def verified(self, tree=None, score_mod=None, q_start=None, mask_mod=None):
        """The rows of drafts, [tokens, heads, dim], of a call with queries that are padded."""
        mask_mod = mask_mod or tree_mask(self.parents if tree is None else tree, self.cached)
        o = flex_attention(self.query, *self.pools, score_mod, mask_mod=mask_mod, q_start=self.cached if q_start is None else q_start, **self.places)
        return o.transpose(1, 2)[self.rows]

    def varlen(self, q_start=None, score_mod=None):
        offsets = torch.tensor([0, *self.counts]).cumsum(0)
        tokens, start = self.query.transpose(1, 2)[self.rows], self.cached if q_start is None else q_start
        mask_mod = tree_mask(self.parents, self.cached)
        return flex_attention(tokens, *self.pools, score_mod, mask_mod=mask_mod, q_offsets=offsets, q_start=start, **self.places)

    def expected(self, bias=None):
        """bias(head, position of the query, of the key): positions in the text, of which each path has those of plain decoding. Query by query."""
        rows = []
        for b, (count, first) in enumerate(zip(self.counts, self.cached.tolist())):
            k, v = (pool[self.table[b]].transpose(0, 1).flatten(1, 2).double() for pool in self.pools)
            for draft in range(count):
                above = path(self.parents[b].tolist(), draft)[::-1]
                keys = [*range(first), *(first + each for each in above)]
                scores = torch.stack([k[h // 2, keys] @ self.query[b, h, draft].double() / 4 for h in range(4)])
                if bias is not None:
                    at = torch.arange(len(keys))
                    scores = torch.stack([scores[h] + bias(h, len(keys) - 1, at) for h in range(4)])
                rows.append(torch.stack([scores.softmax(-1)[h] @ v[h // 2, keys] for h in range(4)]))
        return torch.stack(rows)


def assert_near(found, expected):
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)


def test_random_trees(seed):
    for number in range(10):
        print("draw", number)
        step = Step(seed + number)
        assert_near(step.verified(), step.expected())
        assert_near(step.verified(q_start="bottom_right"), step.expected())


@pytest.mark.parametrize("parents", [[*range(-1, 63)], [-1] + [0] * 63, [-1] * 64, [-1]], ids=["chain", "star", "roots", "one draft"])
def test_the_extreme_trees(parents, seed):
    step = Step(seed, len(parents))
    step.parents[:] = torch.tensor(parents)
    assert_near(step.verified(), step.expected())
    # One tree for all, and the tables that users have.
    ancestors = torch.tensor([[j in path(parents, i) for j in range(len(parents))] for i in range(len(parents))])
    for tree in (step.parents[0], ancestors, ancestors.expand(len(step.counts), -1, -1), ancestors & ~torch.eye(len(parents), dtype=torch.bool)):
        assert_near(step.verified(tree), step.expected())


def test_trees_of_unlike_sizes(seed):
    for number in range(6):
        print("draw", number)
        step = Step(seed + number, is_ragged=True)
        assert_near(step.varlen(), step.expected())
        assert_near(step.varlen("bottom_right"), step.expected())
        assert_near(step.verified(), step.expected())  # padded


def test_scores_at_depths_are_those_of_plain_decoding(seed):
    for number in range(6):
        print("draw", number)
        step = Step(seed + number, is_ragged=number % 2)
        score_mod = at_tree_depths(alibi, step.parents, step.cached)
        expected = step.expected(lambda h, i, j: SLOPES[h] * (j - i).double())
        assert_near(step.verified(score_mod=score_mod), expected)
        assert_near(step.varlen(score_mod=score_mod), expected)
        depths = [[len(path(tree, draft)) - 1 for draft in range(len(tree))] for tree in step.parents.tolist()]
        assert tree_depths(step.parents).tolist() == depths and tree_depths(step.parents[0]).tolist() == depths[0]


def test_a_window_at_depths(seed):
    step = Step(seed, 20)
    window = at_tree_depths(lambda b, h, q_idx, kv_idx: q_idx - kv_idx < 3, step.parents, step.cached)
    found = step.verified(mask_mod=and_masks(tree_mask(step.parents, step.cached), window))
    assert_near(found, step.expected(lambda h, i, j: torch.where(i - j < 3, 0.0, -math.inf)))


def shows_faults(step):
    """Whether no tree of seven drafts is a chain in order, one has an edge, and queries without a start are none of the drafts."""
    return bool((tree_depths(step.parents) != torch.arange(7)).any(1).all() and (step.parents[0] >= 0).any() and (step.cached >= 7).any())


def test_a_wrong_tree_would_be_seen(seed):
    """A draft that hangs elsewhere, cached keys that are one off, depths that are places, and queries that stand elsewhere."""
    step = next(each for each in (Step(seed + n, 7) for n in range(1000)) if shows_faults(each))
    other = step.parents.clone()
    other[0, (other[0] >= 0).nonzero()[0]] = -1
    moved = at_tree_depths(alibi, torch.arange(-1, 6), step.cached)
    faulty = [
        step.verified(tree=other),
        step.verified(mask_mod=tree_mask(step.parents, step.cached + 1)),
        step.verified(q_start=0),
        step.verified(mask_mod="causal"),
    ]
    for found in faulty:
        with pytest.raises(AssertionError):
            assert_near(found, step.expected())
    with pytest.raises(AssertionError):
        assert_near(step.verified(score_mod=moved), step.expected(lambda h, i, j: SLOPES[h] * (j - i).double()))


def test_queries_without_a_position_keep_nothing(seed):
    """A call that forgets q_start gives rows of 0, which are seen, rather than those of another draft."""
    step = Step(seed, 5)
    step.cached[:] = 5
    o, lse = flex_attention(
        step.query, *step.pools, mask_mod=tree_mask(step.parents, step.cached), page_table=step.table, lengths=step.cached.minimum(step.lengths), enable_gqa=True,
        return_lse=True,
    )  # fmt: skip
    assert not o.any() and lse.isneginf().all()


@pytest.mark.parametrize("way", ["padded", "varlen"])
def test_no_tree_compiles_anything(way, seed, nothing_compiled):
    before = scoremod.cache.statistics()["compiled"]["problems"]
    for number in range(8):
        # Sizes are open, too.
        step = Step(seed + number, drafts=number + 2, is_ragged=way == "varlen", batch=number % 3 + 2, page=4)
        found = step.verified() if way == "padded" else step.varlen()
        assert_near(found, step.expected())
    assert scoremod.cache.statistics()["compiled"]["problems"] - before == 1


@torch.fx.experimental._config.patch(use_duck_shape=False)  # sizes may be equal by chance
def test_one_graph_serves_all_trees(seed):
    torch._dynamo.reset()
    graphs = []

    def backend(graph, examples):
        graphs.append(graph)
        return graph.forward

    @torch.compile(fullgraph=True, dynamic=True, backend=backend)
    def verify(query, k, v, parents, cached, table, lengths):
        score_mod = at_tree_depths(alibi, parents, cached)
        return flex_attention(query, k, v, score_mod, mask_mod=tree_mask(parents, cached), q_start=cached, page_table=table, lengths=lengths, enable_gqa=True)

    for number, drafts in enumerate([5, 9, 64, 17]):
        step = Step(seed + number, drafts, batch=number + 2, page=4)
        found = verify(step.query, *step.pools, step.parents, step.cached, step.table, step.lengths)
        assert_near(found.transpose(1, 2)[step.rows], step.expected(lambda h, i, j: SLOPES[h] * (j - i).double()))
    assert len(graphs) == 1


@pytest.mark.parametrize(
    ("tree", "cached", "message"),
    [
        (torch.tensor([[-1, 0, 3]]), torch.tensor([4]), r"tree: expected parents from -1, for a root, to 2, the last draft; found 3 at \[0, 2\]"),
        (torch.tensor([[-1, -2, 1]]), torch.tensor([4]), r"found -2 at \[0, 1\]"),
        (torch.tensor([-1, 2, 1]), torch.tensor([4]), r"tree: expected parents that lead to a root, -1; found draft \[1\] among its own ancestors"),
        (torch.tensor([[0, 0]]), torch.tensor([4]), r"found draft \[0, 0\] among its own ancestors"),
        (torch.ones(1, 1, 3, 3), torch.tensor([4]), r"tree: expected parents, integers .batch, drafts., or ancestors, bool .* found torch.float32 of shape"),
        (torch.ones(1, 3, 2, dtype=torch.bool), torch.tensor([4]), "found torch.bool of shape"),
        ([-1, 0], torch.tensor([4]), "tree: .* found list"),
        (
            torch.tensor([[-1, 0]]),
            torch.tensor([4, 5]),
            r"cached: expected 1 integers, one for each batch of tree on cpu, where tree is; found torch.int64 of shape \(2,\)",
        ),
        (torch.tensor([-1, 0]), torch.tensor([4.0]), r"cached: expected integers \[batch\] on cpu, where tree is; found torch.float32"),
        (torch.tensor([-1, 0]), 4, r"cached: .* found int"),
    ],
)
@pytest.mark.parametrize("function", [tree_mask, lambda *x: at_tree_depths(alibi, *x)], ids=["mask", "depths"])
def test_what_is_no_tree_is_refused(function, tree, cached, message):
    with pytest.raises(scoremod.InvalidArgumentError, match=message):
        function(tree, cached)


def test_speculative_decoding_makes_the_tokens_of_plain_decoding(seed):
    model, prompts, expected = requests(seed)
    found, seen = speculative(model(), prompts, expected, STEPS, pseudo_random.Random(seed))
    assert found == [tokens[:STEPS] for tokens in expected]
    assert any(accepted > 1 for accepted, _ in seen) and any(accepted < drafts for accepted, drafts in seen)


def test_decoding_with_a_wrong_tree_would_be_seen(seed):
    """Drafts that see each other as if they were a chain."""
    model, prompts, expected = requests(seed)

    def wrong():
        made = model()
        made.mask_of = lambda parents, cached: "causal"
        return made

    found = [speculative(wrong(), prompts, expected, STEPS, pseudo_random.Random(seed + n))[0] for n in range(4)]
    assert any(each != [tokens[:STEPS] for tokens in expected] for each in found)
