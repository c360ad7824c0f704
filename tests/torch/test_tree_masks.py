"""Trees of drafted tokens, verified in one call over a paged KV cache: random trees against each sequence by itself in float64."""

import random as pseudo_random

import pytest
import torch

import scoremod
from scoremod.torch import flex_attention


def ancestors_of(parents):
    """bool [nodes, nodes]: whether the second node is above the first one, or is it."""
    above = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            above[node] |= above[parent]
    return above


def tree_mask(before, ancestors):
    def mask_mod(b, h, q_idx, kv_idx):
        return (kv_idx < before[b]) | ancestors[b, q_idx - before[b], kv_idx - before[b]]

    return mask_mod


class Draft:
    """Sequences with as many drafted nodes each, whose keys are the last ones of the pages that each has."""

    def __init__(self, seed, nodes=None):
        choose, random = pseudo_random.Random(seed), torch.Generator().manual_seed(seed)
        batch, heads_kv, group, page, width = choose.randint(1, 4), choose.choice([1, 2]), choose.choice([1, 3]), 4, 6
        nodes = nodes or choose.randint(1, 16)
        # No key ahead of a tree, and none behind it in the last page, are cases too.
        self.before = torch.tensor([choose.choice([0, choose.randint(0, width * page - nodes), width * page - nodes]) for _ in range(batch)])
        parents = [[-1] + [choose.randint(-1 if choose.random() < 0.2 else 0, node - 1) for node in range(1, nodes)] for _ in range(batch)]
        self.ancestors = torch.stack([ancestors_of(each) for each in parents])
        self.table = torch.randperm(batch * width + 2, generator=random)[: batch * width].view(batch, width)
        self.pools = [torch.randn(batch * width + 2, heads_kv, page, 16, generator=random) for _ in "kv"]
        self.query = torch.randn(batch, heads_kv * group, nodes, 16, generator=random)

    def verified(self, mask_mod=None):
        mask_mod = mask_mod or tree_mask(self.before, self.ancestors)
        lengths = self.before + self.query.shape[2]
        return flex_attention(self.query, *self.pools, mask_mod=mask_mod, page_table=self.table, lengths=lengths, q_start="bottom_right", enable_gqa=True)

    def expected(self):
        rows = []
        for b, (before, pages) in enumerate(zip(self.before.tolist(), self.table)):
            nodes, group = self.query.shape[2], self.query.shape[1] // self.pools[0].shape[1]
            k, v = (pool[pages].transpose(0, 1).flatten(1, 2)[:, : before + nodes].double().repeat_interleave(group, 0) for pool in self.pools)
            keep = torch.cat([torch.ones(nodes, before, dtype=torch.bool), self.ancestors[b]], 1)
            scores = (self.query[b].double() @ k.transpose(1, 2) / 4).masked_fill(~keep, -torch.inf)
            rows.append(scores.softmax(-1) @ v)
        return torch.stack(rows)


def test_random_trees(seed):
    for number in range(10):
        print("draw", number)
        draft = Draft(seed + number)
        torch.testing.assert_close(draft.verified().double(), draft.expected(), rtol=1e-4, atol=1e-5)


def test_other_trees_of_as_many_nodes_compile_nothing(seed, nothing_compiled):
    Draft(seed, 7).verified()
    before = scoremod.cache.statistics()["compiled"]["problems"]
    for number in range(1, 8):
        draft = Draft(seed + number, 7)
        torch.testing.assert_close(draft.verified().double(), draft.expected(), rtol=1e-4, atol=1e-5)
    assert scoremod.cache.statistics()["compiled"]["problems"] == before


def test_a_chain_that_is_no_tree_would_be_seen(seed):
    draft = next(each for each in (Draft(seed + n) for n in range(1000)) if not each.ancestors.tril().equal(torch.ones_like(each.ancestors).tril()))
    with pytest.raises(AssertionError):
        torch.testing.assert_close(draft.verified("causal").double(), draft.expected(), rtol=1e-4, atol=1e-5)
