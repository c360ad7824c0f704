"""Times FP8 attention beside bf16 attention of the same shapes, in turns, with the errors of both, and prints a line of JSON for each case.

usage: PYTHONPATH=python python bench/torch/float8_products.py [--device cuda|cpu] [--lengths 4096 8192] [--error-keys 131072] [--positive 1024 2048]

Both attend to the same numbers: those of bf16, and those rounded to FP8 with one factor for each tensor. Errors are relative to float64 attention of
the numbers before they are rounded, over some query rows. `rounded` is float64 attention of the FP8 numbers, so that fp8 above it is what a kernel adds.
fp8_out also writes o in FP8, times 1 / descale_v, and `rounded_out` is float64 attention whose result alone is rounded so.
Data with outliers has a channel of k, and keys of v, whose numbers are 20 times as large. Positive data has magnitudes alone in v: sums that lose
their small terms show there. tflops counts 4 batch heads scores dim.
"""

import argparse
import json

import torch
from timing import median_in_turns, warmed

from scoremod.torch import explain, flex_attention

BATCH_TOKENS, HEADS = 16384, 16
LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}
ROWS = 64
MODIFIERS = {
    "full": {},
    "causal": {"mask_mod": lambda b, h, i, j: i >= j},
    "soft_cap": {"score_mod": lambda score, b, h, i, j: 20 * torch.tanh(score / 20)},
    "window": {"mask_mod": lambda b, h, i, j: (i >= j) & (i - j < 1024)},
    "distance": {"score_mod": lambda score, b, h, i, j: score - 0.01 * abs(i - j)},
}


def tensors(options, batch, length, dim, data=""):
    generator = torch.Generator(options.device).manual_seed(0)
    q, k, v = (torch.randn(batch, HEADS, length, dim, device=options.device, generator=generator) for _ in range(3))
    if data == "outliers":
        k[..., 3] *= 20
        v[:, :, ::97] *= 20
    if data == "positive":
        v = v.abs()
    return [x.to(torch.bfloat16) for x in (q, k, v)]


def in_float8(x, dtype):
    """(x in FP8, the factor by which its numbers are to be multiplied)."""
    factor = float(x.abs().max()) / LARGEST[dtype]
    return (x.float() / factor).to(dtype), factor


def exact(q, k, v, name):
    """Float64 attention of the last ROWS rows. q, k, v: [batch, heads, length, dim]."""
    found = []
    first, length = q.shape[2] - ROWS, k.shape[2]
    at, keys = torch.arange(first, q.shape[2], device=q.device)[:, None], torch.arange(length, device=q.device)
    options = MODIFIERS[name]
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            scores = q[b, h, first:].double() @ k[b, h].double().T / q.shape[-1] ** 0.5
            if "score_mod" in options:
                scores = options["score_mod"](scores, b, h, at, keys)
            if "mask_mod" in options:
                scores = scores.masked_fill(~options["mask_mod"](b, h, at, keys), -torch.inf)
            found.append(scores.softmax(-1) @ v[b, h].double())
    return torch.stack(found).view(*q.shape[:2], ROWS, -1)


def apart(found, expected):
    return float(f"{float((found[:, :, -ROWS:].double() - expected).norm() / expected.norm()):.3g}")


def measured(options, name, batch, length, dim, dtype, data=""):
    wide = tensors(options, batch, length, dim, data)
    eight, factors = zip(*(in_float8(x, dtype) for x in wide))
    words = dict(zip(("descale_q", "descale_k", "descale_v"), (torch.tensor(x, device=options.device) for x in factors)))
    calls = {
        "bf16": lambda: flex_attention(*wide, **MODIFIERS[name]),
        "fp8": lambda: flex_attention(*eight, **words, **MODIFIERS[name]),
        "fp8_out": lambda: flex_attention(*eight, **words, out_dtype=dtype, scale_o=scale_o, **MODIFIERS[name]),
    }
    scale_o = torch.tensor(1 / factors[2], device=options.device)
    for each, call in calls.items():
        if reason := warmed(call):
            raise SystemExit(f"{each}: {reason}")
    expected = exact(*wide, name)
    rounded = exact(*(x.float() * factor for x, factor in zip(eight, factors)), name)
    unscaled = {"fp8_out": factors[2]}
    errors = {each: apart(call().double() * unscaled.get(each, 1), expected) for each, call in calls.items()} | {"rounded": apart(rounded, expected)}
    errors["rounded_out"] = apart((expected.float() / factors[2]).to(dtype).double() * factors[2], expected)
    times = median_in_turns(calls, options.device)
    share = 0.5 if name == "causal" else (1024 / length if name == "window" else 1)
    flops = 4 * batch * HEADS * length * length * dim * share
    return {
        "case": f"{name}_{data}" if data else name,
        "dtype": str(dtype).removeprefix("torch."),
        "batch": batch,
        "length": length,
        "dim": dim,
        **times,
        "ratio": round(times["fp8"] / times["bf16"], 3),
        "tflops": round(flops / times["fp8"] * 1e-9),
        "tflops_out": round(flops / times["fp8_out"] * 1e-9),
        "errors": errors,
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096, 8192])
    parser.add_argument("--dims", type=int, nargs="+", default=[128, 64])
    parser.add_argument("--error-keys", type=int, default=131072, help="the length of the case with many keys, of one batch; 0 leaves it out")
    parser.add_argument("--positive", type=int, nargs="*", default=[1024, 2048, 4096, 8192, 16384], help="the lengths of the cases with positive data")
    options = parser.parse_args()
    dtype = torch.float8_e4m3fn
    cases = [(name, max(1, BATCH_TOKENS // n), n, dim, dtype) for dim in options.dims for n in options.lengths for name in MODIFIERS]
    cases += [("full", 2, options.lengths[-1], options.dims[0], torch.float8_e5m2)]
    for case in cases:
        print(json.dumps(measured(options, *case)), flush=True)
    print(json.dumps(measured(options, "full", 2, options.lengths[-1], options.dims[0], dtype, "outliers")), flush=True)
    for length in options.positive:
        print(json.dumps(measured(options, "full", max(1, BATCH_TOKENS // length), length, options.dims[0], dtype, "positive")), flush=True)
    if options.error_keys:
        for data in ("", "positive"):
            print(json.dumps(measured(options, "causal", 1, options.error_keys, options.dims[0], dtype, data)), flush=True)
    sizes = torch.zeros(2, HEADS, options.lengths[-1], options.dims[0], device=options.device).to(dtype)
    print(*(f"# {line}" for line in str(explain(sizes, sizes, sizes)).splitlines() if "kernels" in line or "cudnn" in line), sep="\n")


if __name__ == "__main__":
    main()
