"""Requests to a small causal transformer over a paged cache, answered by plain decoding and by trees of draft tokens."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from scoremod.jax import append_to_pages, at_tree_depths, flex_attention, tree_mask

SLOPES = np.array([0.5, 0.25, 0.125, 0.0625], np.float32)
BATCH, DRAFTS, PROMPT, STEPS, VOCABULARY, WIDTH = 2, 6, 5, 12, 23, 24


def alibi(score, b, h, q_idx, kv_idx):
    return score + jnp.asarray(SLOPES)[h] * (kv_idx - q_idx).astype(jnp.float32)


def path(parents, draft):
    """The draft and its ancestors."""
    return [draft] if parents[draft] < 0 else [draft, *path(parents, parents[draft])]


def drawn_model(rng):
    """(weights, page table, pages of each layer) of a causal transformer with ALiBi over a paged cache: two layers, heads of 16 dims."""
    embedding, readout = rng.standard_normal((2, VOCABULARY, 64))
    layers = [[rng.standard_normal((64, n)) / 8 for n in (3 * 64, 64, 64)] for _ in range(2)]
    pools = [tuple(np.full((2, BATCH * WIDTH, 4, 4, 16), np.nan)) for _ in layers]
    table = rng.permutation(BATCH * WIDTH).reshape(BATCH, WIDTH).astype(np.int32)
    return jax.tree.map(functools.partial(jnp.asarray, dtype=jnp.float32), (embedding, readout, layers)), table, jax.tree.map(jnp.float32, pools)


def forward(mask_of, weights, table, pools, tokens, cached, parents):
    """(the most likely token after each, how near another one came, the pages, each layer's new keys and values). tokens: [batch, sequence]."""
    embedding, readout, layers = weights
    x, lengths, new_pools, new = embedding[tokens], cached + tokens.shape[1], [], []
    for (w_qkv, w_o, w_up), pages in zip(layers, pools):
        q, k, v = jnp.moveaxis((x / jnp.linalg.norm(x, axis=-1, keepdims=True) * 4 @ w_qkv).reshape(*x.shape[:2], 3, 4, 16), 2, 0)
        pages = append_to_pages(*pages, k, v, table, lengths)
        score_mod = at_tree_depths(alibi, parents, cached)
        o = flex_attention(q, *pages, score_mod, mask_of(parents, cached), q_start=cached, page_table=table, lengths=lengths)
        x = jnp.tanh(o.reshape(x.shape) @ w_o * 3 + x @ w_up)
        new_pools.append(pages)
        new.append((k, v))
    largest, following = jax.lax.top_k(x @ readout.T, 2)
    return following[..., 0], (largest[..., 0] - largest[..., 1]).min(), new_pools, new


@jax.jit
def keep(pools, new, accepted, table, lengths, offsets):
    """Writes the accepted drafts' keys and values behind those that were cached. accepted: numbers among all drafts, of which the last may be in no
    sequence."""
    return [append_to_pages(*pages, *(each.reshape(-1, 4, 16)[accepted] for each in kv), table, lengths, offsets) for pages, kv in zip(pools, new)]


plain_forward = jax.jit(functools.partial(forward, tree_mask))


def prefilled(model, prompts):
    weights, table, pools = model
    following, _, pools, _ = plain_forward(weights, table, pools, prompts, np.zeros(BATCH, np.int32), np.arange(-1, PROMPT - 1))
    return np.asarray(following[:, -1]), pools


def greedy(model, prompts, steps):
    """(tokens of plain decoding, how near another token came)"""
    following, pools = prefilled(model, prompts)
    made, nearest = [following], np.inf
    for step in range(steps - 1):
        following, near, pools, _ = plain_forward(*model[:2], pools, following.reshape(BATCH, 1), np.full(BATCH, PROMPT + step, np.int32), np.array([-1]))
        made.append(np.asarray(following[:, 0]))
        nearest = min(nearest, float(near))
    return np.stack(made, 1).tolist(), nearest


def requests(seed):
    """(model, prompts, tokens of plain decoding) where contexts matter, and where rounding decides no token."""
    for number in range(seed, seed + 1000):
        rng = np.random.default_rng(number)
        model, prompts = drawn_model(rng), rng.integers(VOCABULARY, size=(BATCH, PROMPT))
        expected, nearest = greedy(model, prompts, 26)
        if nearest > 1e-3 and all(len(set(tokens[:STEPS])) >= 5 for tokens in expected):
            return model, prompts, expected
    raise AssertionError("no such requests")


def noisy_tree(rng, root, truth):
    """(tokens, parents) of a tree below the token that is known, with branches of which some are what the model says."""
    tokens, parents, right = [root], [-1], 0
    for _ in range(DRAFTS - 1):
        parent = right if rng.random() < 0.6 else int(rng.integers(len(tokens)))
        depth = len(path(parents, parent)) - 1
        is_right = parent == right and rng.random() < 0.7 and depth < len(truth)
        tokens.append(truth[depth] if is_right else int(rng.integers(VOCABULARY)))
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


def speculative(run, model, prompts, truth, rng):
    """(the tokens by trees of drafts, how many drafts each tree had accepted)"""
    weights, table, _ = model
    following, pools = prefilled(model, prompts)
    made, cached, seen = [[int(each)] for each in following], np.full(BATCH, PROMPT, np.int32), []
    while min(map(len, made)) < STEPS:
        trees = [noisy_tree(rng, tokens[-1], right[len(tokens) :]) for tokens, right in zip(made, truth)]
        tokens, parents = (np.array(each, np.int32) for each in zip(*trees))
        following, _, pools, new = run(weights, table, pools, tokens, cached, parents)
        following = np.asarray(following)
        paths = [accepted_path(*tree, each) for tree, each in zip(trees, following)]
        accepted = np.array([b * DRAFTS + draft for b, drafts in enumerate(paths) for draft in drafts])
        counts = np.array([len(drafts) for drafts in paths], np.int32)
        cached = cached + counts
        # As many numbers each step, so that nothing is compiled anew: those beyond the last offset are not written.
        accepted = np.append(accepted, np.zeros(BATCH * DRAFTS - len(accepted), int))
        pools = keep(pools, new, accepted, table, cached, np.cumsum([0, *counts]).astype(np.int32))
        for each, drafts, after in zip(made, paths, following):
            each += after[drafts].tolist()
        seen += (counts - 1).tolist()
    return [tokens[:STEPS] for tokens in made], seen
