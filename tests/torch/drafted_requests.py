"""Requests to a small causal transformer over a paged cache, answered by plain decoding and by trees of draft tokens."""

import math
import random as pseudo_random

import torch

from scoremod.torch import append_to_pages, at_tree_depths, flex_attention, tree_mask

STEPS = 15
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])


def alibi(score, b, h, q_idx, kv_idx):
    return score + SLOPES[h] * (kv_idx - q_idx)


def path(parents, draft):
    """The draft and its ancestors."""
    return [draft] if parents[draft] < 0 else [draft, *path(parents, parents[draft])]


class Model:
    """A causal transformer with ALiBi over a paged cache: two layers, one sequence for each row of the table."""

    mask_of = staticmethod(tree_mask)
    HEADS, DIM, VOCABULARY, PAGE, WIDTH = 4, 16, 23, 4, 32

    def __init__(self, random, batch):
        width = self.HEADS * self.DIM
        self.embedding, self.readout = torch.randn(2, self.VOCABULARY, width, generator=random)
        self.layers = [[torch.randn(width, n, generator=random) / width**0.5 for n in (3 * width, width, width)] for _ in range(2)]
        pages = batch * self.WIDTH
        self.table = torch.randperm(pages, generator=random).view(batch, self.WIDTH)
        self.pools = [torch.full((2, pages, self.HEADS, self.PAGE, self.DIM), torch.nan) for _ in self.layers]
        self.closest = math.inf  # the two largest logits of a token

    def forward(self, tokens, counts, cached, parents=None):
        """The most likely token after each, and each layer's new keys and values. tokens: of all sequences in one, counts[b] for each."""
        x, offsets, lengths = self.embedding[tokens], torch.nn.functional.pad(counts.cumsum(0), (1, 0)), cached + counts
        score_mod, mask_mod, kept = alibi, "causal", []
        if parents is not None:
            score_mod, mask_mod = at_tree_depths(alibi, parents, cached), self.mask_of(parents, cached)
        for (w_qkv, w_o, w_up), pools in zip(self.layers, self.pools):
            q, k, v = (torch.nn.functional.normalize(x) * 4 @ w_qkv).unflatten(-1, (3, self.HEADS, self.DIM)).unbind(1)
            append_to_pages(*pools, k, v, self.table, lengths, offsets)
            o = flex_attention(q, *pools, score_mod, mask_mod=mask_mod, q_start=cached, q_offsets=offsets, page_table=self.table, lengths=lengths)
            x = torch.tanh((o.flatten(1) @ w_o) * 3 + x @ w_up)
            kept.append((k, v))
        largest = (x @ self.readout.T).topk(2)
        self.closest = min(self.closest, float(-largest.values.diff().max()))
        return largest.indices[:, 0], kept

    def keep(self, kept, accepted, lengths, offsets):
        """Writes the accepted tokens' keys and values behind those that were cached, over those of the whole tree."""
        for pools, (k, v) in zip(self.pools, kept):
            append_to_pages(*pools, k[accepted], v[accepted], self.table, lengths, offsets)


def greedy(model, prompts, steps):
    """Plain decoding, one token a step: (tokens of each sequence after its prompt)."""
    counts, cached = torch.tensor([len(prompt) for prompt in prompts]), torch.zeros(len(prompts), dtype=torch.int64)
    following = model.forward(torch.cat(prompts), counts, cached)[0][counts.cumsum(0) - 1]
    made, cached = [following], counts
    for _ in range(steps - 1):
        following = model.forward(following, torch.ones_like(counts), cached)[0]
        made.append(following)
        cached = cached + 1
    return torch.stack(made, 1).tolist()


def noisy_tree(choose, root, truth):
    """(tokens, parents) of a tree below the token that is known, with branches of which some are what the model says."""
    tokens, parents, right = [root], [-1], 0
    for _ in range(choose.randint(0, 8)):
        parent = right if choose.random() < 0.6 else choose.randrange(len(tokens))
        is_right = parent == right and choose.random() < 0.7 and len(path(parents, right)) - 1 < len(truth)
        tokens.append(truth[len(path(parents, right)) - 1] if is_right else choose.randrange(Model.VOCABULARY))
        parents.append(parent)
        right = len(tokens) - 1 if is_right else right
    return tokens, parents


def accepted_path(tokens, parents, following):
    """The drafts from the root on whose tokens are what the model says after their parents."""
    accepted = [0]
    while True:
        child = next((i for i, parent in enumerate(parents) if parent == accepted[-1] and tokens[i] == following[accepted[-1]]), None)
        if child is None:
            return accepted
        accepted.append(child)


def speculative(model, prompts, truth, steps, choose):
    """(the same tokens by trees of drafts, how many drafts each step accepted of how many)"""
    counts, cached = torch.tensor([len(prompt) for prompt in prompts]), torch.zeros(len(prompts), dtype=torch.int64)
    first = model.forward(torch.cat(prompts), counts, cached)[0][counts.cumsum(0) - 1]
    made, cached, seen = [[each] for each in first.tolist()], counts, []
    while min(map(len, made)) < steps:
        trees = [noisy_tree(choose, each[-1], right[len(each) :]) for each, right in zip(made, truth)]
        counts = torch.tensor([len(tokens) for tokens, _ in trees])
        most = int(counts.max())
        parents = torch.tensor([parents + [-1] * (most - len(parents)) for _, parents in trees])
        following, kept = model.forward(torch.tensor([token for tokens, _ in trees for token in tokens]), counts, cached, parents)
        paths = [accepted_path(*tree, part.tolist()) for tree, part in zip(trees, following.split(counts.tolist()))]
        begins = (counts.cumsum(0) - counts).tolist()
        accepted = torch.tensor([begin + draft for begin, drafts in zip(begins, paths) for draft in drafts])
        for tokens, begin, drafts in zip(made, begins, paths):
            tokens += [int(following[begin + draft]) for draft in drafts]
        lengths = torch.tensor([len(drafts) for drafts in paths])
        cached = cached + lengths
        model.keep(kept, accepted, cached, torch.nn.functional.pad(lengths.cumsum(0), (1, 0)))
        seen += [(len(drafts) - 1, len(tokens) - 1) for drafts, (tokens, _) in zip(paths, trees)]
    return [tokens[:steps] for tokens in made], seen


def requests(seed):
    """(model, prompts, the tokens of plain decoding) where contexts matter, and where rounding decides no token. model: makes one without cached keys."""
    for number in range(seed, seed + 1000):
        choose = pseudo_random.Random(number)
        prompts = [torch.tensor([choose.randrange(Model.VOCABULARY) for _ in range(n)]) for n in (3, 7, 1)]
        model = lambda number=number: Model(torch.Generator().manual_seed(number), 3)  # noqa: E731
        plain = model()
        expected = greedy(plain, prompts, 30)
        if plain.closest > 1e-3 and all(len(set(tokens[:STEPS])) >= 6 for tokens in expected):
            return model, prompts, expected
    raise AssertionError("no such requests")
