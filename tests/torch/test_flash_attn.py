"""flash_attn's functions by their definition: dense attention in float64, bottom-right aligned."""

import random as pseudo_random

import pytest
import torch

import scoremod
from scoremod.torch.flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache


def options_of(choose, random, heads):
    return dict(
        causal=choose.random() < 0.5, window_size=choose.choice([(-1, -1), (3, 0), (2, 4), (-1, 1)]), softcap=choose.choice([0.0, 2.0]),
        alibi_slopes=choose.choice([None, torch.rand(heads, generator=random)]), s_aux=choose.choice([None, torch.randn(heads, generator=random)]),
    )  # fmt: skip


def definition(q, k, v, causal, window_size, softcap, alibi_slopes, s_aux):
    """(o, lse) of one sequence [sequence, heads, dim] in float64; lse [heads, sequence]."""
    q, k, v = (x.double() for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    distance = torch.arange(k.shape[0]) - torch.arange(q.shape[0])[:, None] - (k.shape[0] - q.shape[0])
    if alibi_slopes is not None:
        scores = scores - alibi_slopes.double()[:, None, None] * distance.abs()
    left, right = (bound if bound >= 0 else 10**6 for bound in window_size)
    keep = (distance <= (0 if causal else right)) & (-distance <= left)
    scores = scores.masked_fill(~keep, -torch.inf)
    if s_aux is not None:
        scores = torch.cat([scores, s_aux.double()[:, None, None].expand(-1, q.shape[0], 1)], 2)
        v = torch.cat([v, torch.zeros_like(v[:1])])[: scores.shape[2]] if len(v) else v.new_zeros(1, *v.shape[1:])
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1).nan_to_num(), v), scores.logsumexp(-1)


def near(found, expected):
    for x, y in zip(found, expected):
        torch.testing.assert_close(x.double(), y, rtol=1e-4, atol=1e-5)


def test_random_calls(seed):
    for number in range(20):
        print("draw", number)
        choose, random = pseudo_random.Random(seed + number), torch.Generator().manual_seed(seed + number)
        heads_kv, batch, page = choose.choice([1, 2]), 3, choose.choice([2, 4])
        heads = heads_kv * choose.choice([1, 2])
        options = options_of(choose, random, heads)
        draw = lambda *shape: torch.randn(shape, generator=random)  # noqa: E731, B023
        queries, keys = [choose.randint(1, 5) for _ in range(batch)], [choose.randint(1, 8) for _ in range(batch)]
        q, k, v = draw(batch, queries[0], heads, 8), draw(batch, keys[0], heads_kv, 8), draw(batch, keys[0], heads_kv, 8)
        o, lse, _ = flash_attn_func(q, k, v, return_attn_probs=True, **options)
        for b in range(batch):
            near((o[b], lse[b]), definition(q[b], k[b], v[b], **options))
        of_q, of_k = (torch.tensor([0, *each]).cumsum(0) for each in (queries, keys))
        q, k, v = draw(sum(queries), heads, 8), draw(sum(keys), heads_kv, 8), draw(sum(keys), heads_kv, 8)
        o, lse, _ = flash_attn_varlen_func(q, k, v, of_q, of_k, max(queries), max(keys), return_attn_probs=True, **options)
        cache_k, cache_v = draw(20, page, heads_kv, 8), draw(20, page, heads_kv, 8)
        table = torch.randperm(20, generator=random)[: batch * (8 // page)].reshape(batch, -1)
        paged = flash_attn_varlen_func(q, cache_k, cache_v, of_q, of_k, max(queries), max(keys), block_table=table, **options)
        for b in range(batch):
            rows = slice(of_q[b], of_q[b + 1])
            near((o[rows], lse[:, rows]), definition(q[rows], k[of_k[b] : of_k[b + 1]], v[of_k[b] : of_k[b + 1]], **options))
            gathered = (cache[table[b]].flatten(0, 1)[: keys[b]] for cache in (cache_k, cache_v))
            near(paged[rows][None], definition(q[rows], *gathered, **options)[:1])
        # New keys go behind those of the cache, in pages and in rows.
        q, k, v, before = draw(batch, 2, heads, 8), draw(batch, 2, heads_kv, 8), draw(batch, 2, heads_kv, 8), torch.tensor([0, 3, 6])
        for caches, places in (((cache_k, cache_v), {"block_table": table}), ((draw(batch, 9, heads_kv, 8), draw(batch, 9, heads_kv, 8)), {})):
            held = [[(c[table[b]].flatten(0, 1) if places else c[b])[: before[b]].clone() for c in caches] for b in range(batch)]
            o, lse = flash_attn_with_kvcache(q, *caches, k, v, cache_seqlens=before, return_softmax_lse=True, **places, **options)
            for b in range(batch):
                whole = (torch.cat([old, new[b]]) for old, new in zip(held[b], (k, v)))
                near((o[b], lse[b]), definition(q[b], *whole, **options))


def test_sequences_that_are_all_empty():
    q, k, at = torch.zeros(0, 2, 8), torch.zeros(0, 2, 8), torch.zeros(4, dtype=torch.int32)
    o, lse, _ = flash_attn_varlen_func(q, k, k, at, at, 0, 0, return_attn_probs=True)
    assert o.shape == q.shape and lse.shape == (2, 0)


def test_what_is_not_there_is_refused():
    x = torch.zeros(1, 2, 2, 8)
    with pytest.raises(scoremod.UnsupportedError, match="rotary_cos"):
        flash_attn_with_kvcache(x, x, x, rotary_cos=x)
    with pytest.raises(scoremod.InvalidArgumentError, match="k, v: expected both"):
        flash_attn_with_kvcache(x, x, x, k=x)
    ends, table = torch.tensor([0, 2]), torch.tensor([[0]])
    for rank in (0, 1, 2, 5):
        wrong = torch.zeros([2] * rank)
        for call, name in (
            (lambda: flash_attn_func(wrong, x, x), "q"),  # noqa: B023
            (lambda: flash_attn_with_kvcache(x, x, wrong), "v_cache"),  # noqa: B023
            (lambda: flash_attn_with_kvcache(x, x, x, wrong, x), "k"),  # noqa: B023
            (lambda: flash_attn_varlen_func(x[0], wrong, x, ends, ends, block_table=table), "k"),  # noqa: B023
        ):
            with pytest.raises(scoremod.InvalidArgumentError, match=f"{name}: expected a tensor of 4 dimensions"):
                call()
    with pytest.raises(scoremod.InvalidArgumentError, match="cu_seqlens_k"):
        flash_attn_varlen_func(x[0], x[0], x[0], torch.tensor([0, 2]))
