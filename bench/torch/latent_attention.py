"""Times multi-head latent attention of one KV head, whose values are the first dims of its keys, and prints a line of JSON for each case.

usage: PYTHONPATH=python python bench/torch/latent_attention.py [--device cuda|cpu] [--part 1] [--seed N]

Paged cases have sequences of one length over pages in random order; lists name random tokens of a cache for each query. Errors are those of sampled rows
relative to float64 attention. tflops counts 2 rows keys (dim_qk + dim_v), and gb_per_s the keys that the rows of a sequence or a list read, once.
--part divides all sizes but the dims, for machines without a GPU.
"""

import argparse
import json
import random

import torch
from timing import median_in_turns, warmed

from scoremod.torch import flex_attention

DIM_QK, DIM_V, SAMPLES = 576, 512, 24
SCALE = 192**-0.5


def soft_cap(score, b, h, q_idx, kv_idx):
    return 30 * torch.tanh(score / 30)


def normal(options, *shape):
    return torch.randn(shape, device=options.device, dtype=torch.bfloat16, generator=options.generator)


def integers(options, end, *shape):
    return torch.randint(end, shape, device=options.device, generator=options.generator)


def paged(options, batch, keys, heads, page, queries=1):
    """(call of score_mod, keys of a sampled row, query, rows): sequences of `keys` tokens each, in pages of their own."""
    pages = batch * keys // page
    pool = normal(options, pages, 1, page, DIM_QK)
    table = torch.randperm(pages, device=options.device, generator=options.generator).view(batch, -1)
    lengths = torch.full((batch,), keys, device=options.device)
    query = normal(options, batch, heads, queries, DIM_QK)

    def call(score_mod=None):
        options_of_call = {"mask_mod": "causal_bottom_right", "page_table": table, "lengths": lengths, "enable_gqa": True}
        return flex_attention(query, pool, pool[..., :DIM_V], score_mod, scale=SCALE, **options_of_call)

    def keys_of(b, q):
        return pool[table[b], 0].flatten(0, 1)[: keys - queries + q + 1]

    return call, keys_of, query, batch * heads * queries * keys, batch * keys


def listed(options, batch, queries, cached, entries, heads):
    """paged() of lists: `entries` tokens of each batch's cache for each query."""
    cache = normal(options, batch, 1, cached, DIM_QK)
    lists = integers(options, cached, batch, queries, entries)
    query = normal(options, batch, heads, queries, DIM_QK)

    def call(score_mod=None):
        return flex_attention(query, cache, cache[..., :DIM_V], score_mod, token_list=lists, enable_gqa=True, scale=SCALE)

    return call, lambda b, q: cache[b, 0, lists[b, q]], query, batch * heads * queries * entries, batch * queries * entries


def error(found, query, keys_of, score_mod):
    """The greatest of sampled rows, relative to the row."""
    most = 0.0
    for _ in range(SAMPLES):
        b, h, q = (random.randrange(n) for n in query.shape[:3])
        keys = keys_of(b, q).double()
        scores = keys @ query[b, h, q].double() * SCALE
        weights = (scores if score_mod is None else score_mod(scores, b, h, q, None)).softmax(0)
        expected = weights @ keys[:, :DIM_V]
        most = max(most, float((found[b, h, q].double() - expected).norm() / expected.norm()))
    return most


def measured(options, name, made, score_mod):
    call, keys_of, query, pairs, keys = made
    if reason := warmed(lambda: call(score_mod)):
        raise SystemExit(f"{name}: {reason}")
    found = error(call(score_mod), query, keys_of, score_mod)
    ms = median_in_turns({"ms": lambda: call(score_mod)}, options.device)["ms"]
    rates = {"tflops": round(2e-9 * pairs * (DIM_QK + DIM_V) / ms), "gb_per_s": round(2e-6 * keys * DIM_QK / ms)}
    return {"case": name, "ms": round(ms, 4), **rates, "error": float(f"{found:.3g}")}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--part", type=int, default=1)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options = parser.parse_args()
    random.seed(options.seed)
    options.generator = torch.Generator(options.device).manual_seed(options.seed)
    print(json.dumps({"seed": options.seed}), flush=True)

    def size(count):
        return max(1, count // options.part)

    cases = {
        "128 heads, 128 of 4096": lambda: paged(options, size(128), size(4096), 128, 64),
        "128 heads, 2 queries, 128 of 4096": lambda: paged(options, size(128), size(4096), 128, 64, 2),
        "16 heads, 128 of 4096": lambda: paged(options, size(128), size(4096), 16, 64),
        "8 heads, pages of 1, 64 of 8192": lambda: paged(options, size(64), size(8192), 8, 1),
        "lists of 2048 of 131072, 128 heads, 4096 queries": lambda: listed(options, 1, size(4096), size(131072), size(2048), 128),
        "lists of 2048 of 8192, 128 heads, 128 sequences": lambda: listed(options, size(128), 1, size(8192), size(2048), 128),
        "lists of 2048 of 8192, 16 heads, 128 sequences": lambda: listed(options, size(128), 1, size(8192), size(2048), 16),
    }
    for name, make in cases.items():
        made = make()
        for each, score_mod in ((name, None), (f"{name}, soft cap", soft_cap)):
            print(json.dumps(measured(options, each, made, score_mod)), flush=True)
        del made


if __name__ == "__main__":
    main()
