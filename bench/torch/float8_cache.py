"""Times decoding over FP8 KV caches beside the same calls over bf16 ones, in turns, and prints a line of JSON for each.

usage: PYTHONPATH=python python bench/torch/float8_cache.py [--device cuda|cpu] [--batch 64] [--length 8192] [--page 16]

Outputs are held to each other before they are timed: the FP8 numbers, times their factors, are the bf16 numbers. fp8_rows has a factor for each key and
value in place of one for each KV head. gb_per_s counts k and v once.
"""

import argparse
import json

import torch
from timing import median_in_turns, warmed

from scoremod.torch import flex_attention

HEADS, KV_HEADS, DIM = 32, 8, 128
# The output's rounding to bf16, of the same keys and values.
MOST_APART = 2**-7


def caches(options, dtype):
    """k and v pages in bf16 and in FP8, the factors of their KV heads, and the calls' page table and lengths."""
    generator = torch.Generator(options.device).manual_seed(0)
    width = -(-options.length // options.page)
    pages = options.batch * width
    factors = torch.tensor([2.0 ** (-head % 4) for head in range(KV_HEADS)], device=options.device)
    eight = [torch.randn(pages, KV_HEADS, options.page, DIM, device=options.device, generator=generator).to(dtype) for _ in range(2)]
    wide = [(x.float() * factors[:, None, None]).to(torch.bfloat16) for x in eight]
    table = torch.randperm(pages, device=options.device, generator=generator).to(torch.int32).view(options.batch, width)
    lengths = torch.full((options.batch,), options.length, dtype=torch.int32, device=options.device)
    return wide, eight, factors, {"page_table": table, "lengths": lengths, "mask_mod": "causal_bottom_right", "enable_gqa": True}


def measured(options, dtype, queries):
    wide, eight, factors, words = caches(options, dtype)
    q = torch.randn(options.batch, HEADS, queries, DIM, device=options.device).to(torch.bfloat16)
    of_eight = words | {"descale_k": factors, "descale_v": factors}
    of_rows = factors[None, :, None, None].expand(*eight[0].shape[:3], 1).contiguous()
    by_rows = words | {"descale_k": of_rows, "descale_v": of_rows}
    calls = {
        "bf16": lambda: flex_attention(q, *wide, **words),
        "fp8": lambda: flex_attention(q, *eight, **of_eight),
        "fp8_rows": lambda: flex_attention(q, *eight, **by_rows),
    }
    for name, call in calls.items():
        if reason := warmed(call):
            raise SystemExit(f"{name}: {reason}")
    one, *others = (call().float() for call in calls.values())
    apart = max(float((one - other).norm() / one.norm()) for other in others)
    if not apart <= MOST_APART:
        raise SystemExit(f"expected the same outputs within {MOST_APART}, found {apart} between bf16 and {dtype}")
    times = median_in_turns(calls, options.device)
    read = 2 * options.batch * options.length * KV_HEADS * DIM
    rates = {"bf16_gb_per_s": round(2 * read / times["bf16"] * 1e-6), "fp8_gb_per_s": round(read / times["fp8"] * 1e-6)}
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "queries": queries,
        "page": options.page,
        **times,
        "ratio": round(times["fp8"] / times["bf16"], 3),
        "rows_ratio": round(times["fp8_rows"] / times["bf16"], 3),
        **rates,
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    for name, value in (("batch", 64), ("length", 8192), ("page", 16)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        for queries in (1, 4):
            print(json.dumps(measured(options, dtype, queries)), flush=True)


if __name__ == "__main__":
    main()
