"""scoremod.torch.flex_attention beside torch.nn.attention.flex_attention (compiled) and scaled_dot_product_attention, where they can say the same.

usage: PYTHONPATH=python python bench/torch/flex_attention.py OUTPUT.json [--seconds N] [--batch N] [--heads N] [--seq N] [--dim N] [--dtype NAME] [--device NAME]

Same process, same tensors, in turns: forward, and forward with backward, in milliseconds, the median of rounds. Gradients flow to captured tensors
where a case has some. Then a training step of two layers of transformers' models with each of its attention implementations, and the host's time of
an eager call on tiny tensors. What an implementation refuses is recorded with the reason. Each case is written as it ends, the most important first;
after --seconds none is begun, and those that were not are named in the file.
"""

import argparse
import functools
import json
import os
import time
from pathlib import Path

import models
import torch
from timing import median_in_turns, warmed
from torch.nn.attention import flex_attention as torch_flex
from torch.nn.functional import scaled_dot_product_attention

import scoremod
from scoremod.torch import flex_attention

# Repetitions of the host's time.
ROUNDS = 11
CALLS = 100


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def cases(options):
    """name -> (score_mod, mask_mod, learned tensors, options of scaled_dot_product_attention or None)."""
    device, seq = options.device, options.seq
    window = seq // 8
    documents = (torch.arange(seq, device=device, dtype=torch.int32) * 8 // seq).expand(options.batch, seq).contiguous()
    slopes = (2.0 ** -torch.linspace(1, 8, options.heads, device=device)).requires_grad_()
    table = (0.1 * torch.randn(options.heads, 257, device=device)).requires_grad_()

    def alibi(score, b, h, q_idx, kv_idx):
        return score + slopes[h] * (kv_idx - q_idx)

    def soft_cap(score, b, h, q_idx, kv_idx):
        return 50.0 * torch.tanh(score / 50.0)

    def relative(score, b, h, q_idx, kv_idx):
        return score + table[h, torch.clamp(kv_idx - q_idx, -128, 128) + 128]

    def in_window(b, h, q_idx, kv_idx):
        return (q_idx >= kv_idx) & (q_idx - kv_idx < window)

    def in_documents(b, h, q_idx, kv_idx):
        return (q_idx >= kv_idx) & (documents[b, q_idx] == documents[b, kv_idx])

    def documents_alibi_cap(score, b, h, q_idx, kv_idx):
        return 50.0 * torch.tanh((score + slopes[h] * (kv_idx - q_idx)) / 50.0)

    return {
        "documents_alibi_cap_learned": (documents_alibi_cap, in_documents, (slopes,), None),
        "causal": (None, causal, (), {"is_causal": True}),
        "plain": (None, None, (), {}),
        "documents": (None, in_documents, (), None),
        "alibi_learned": (alibi, causal, (slopes,), None),
        "sliding_window": (None, in_window, (), None),
        "soft_cap": (soft_cap, None, (), None),
        "relative_table_learned": (relative, None, (table,), None),
    }


def implementations(case, options):
    """name -> (function of q, k, v; reason why not)."""
    score_mod, mask_mod, _, sdpa = case
    found = {"scoremod": lambda q, k, v: flex_attention(q, k, v, score_mod, mask_mod=mask_mod)}
    if options.device == "cuda":
        block_mask = None
        if mask_mod is not None:
            block_mask = torch.compile(torch_flex.create_block_mask)(mask_mod, options.batch, None, options.seq, options.seq, device=options.device)
        compiled = torch.compile(torch_flex.flex_attention)
        found["flex_attention"] = lambda q, k, v: compiled(q, k, v, score_mod, block_mask)
    if sdpa is not None:
        found["sdpa"] = functools.partial(scaled_dot_product_attention, **sdpa)
    return found


def measure(case, options):
    q, k, v = (torch.randn(options.batch, options.seq, options.heads, options.dim, device=options.device, dtype=options.dtype) for _ in range(3))
    q, k, v = (x.transpose(1, 2).requires_grad_() for x in (q, k, v))
    d_o = torch.randn_like(q)
    calls, record = {}, {}
    for name, attention in implementations(case, options).items():

        def forward(attention=attention):
            with torch.no_grad():
                return attention(q, k, v)

        def both(attention=attention):
            return torch.autograd.grad(attention(q, k, v), (q, k, v, *case[2]), d_o)

        record[name] = {}
        for what, call in (("forward", forward), ("with_gradients", both)):
            refusal = warmed(call)
            if refusal is None:
                calls[name, what] = call
            else:
                record[name][f"{what}_refused"] = refusal
    for (name, what), ms in median_in_turns(calls, options.device).items():
        record[name][f"{what}_ms"] = ms
    return record


def host_microseconds(options):
    """An eager call on tiny tensors, as fast as the host makes them."""
    q = torch.randn(1, 1, 64, 64, device=options.device, dtype=options.dtype)
    slopes = torch.ones(1, device=options.device)
    alibi = lambda score, b, h, q_idx, kv_idx: score + slopes[h] * kv_idx  # noqa: E731
    calls = {
        "scoremod": lambda: flex_attention(q, q, q, mask_mod=causal),
        "scoremod_alibi": lambda: flex_attention(q, q, q, alibi, mask_mod=causal),
        "sdpa": lambda: scaled_dot_product_attention(q, q, q, is_causal=True),
    }
    results = {}
    with torch.no_grad():
        for name, call in calls.items():
            for _ in range(20):
                call()
            rounds = []
            for _ in range(ROUNDS):
                begin = time.perf_counter()
                for _ in range(CALLS):
                    call()
                rounds.append((time.perf_counter() - begin) / CALLS * 1e6)
                if options.device == "cuda":
                    torch.cuda.synchronize()  # or the queue fills, and the host waits for the device
            results[name] = round(sorted(rounds)[ROUNDS // 2], 2)
    return results


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    for name, value in (("batch", 4), ("heads", 16), ("seq", 4096), ("dim", 128)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--cases", help="names between commas")
    parser.add_argument("--seconds", type=float, default=1e9)
    options = parser.parse_args()
    options.dtype = getattr(torch, options.dtype)
    torch.manual_seed(0)
    deadline = time.monotonic() + options.seconds
    report = {
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "CPU",
        "torch": torch.__version__,
        "scoremod": scoremod.version(),
        "commit": os.environ.get("SCOREMOD_COMMIT", ""),
        "shape": {name: getattr(options, name) for name in ("batch", "heads", "seq", "dim")} | {"dtype": str(options.dtype)},
        "host_us": host_microseconds(options),
        "cases": {},
        "training_steps": {},
    }
    print("host", json.dumps(report["host_us"]), flush=True)
    parts = [("cases", name, functools.partial(measure, case, options)) for name, case in cases(options).items()]
    steps = [("training_steps", name, functools.partial(models.measure, name, options)) for name in models.NAMES]
    parts[2:2] = steps
    if options.cases:
        parts = [part for part in parts if part[1] in options.cases.split(",")]
    for number, (kind, name, run) in enumerate(parts):
        if time.monotonic() > deadline:
            report["not_run"] = [each for _, each, _ in parts[number:]]
            print("no time is left for", *report["not_run"])
            break
        report[kind][name] = run()
        print(name, json.dumps(report[kind][name]), f"{deadline - time.monotonic():.0f} s left", flush=True)
        # Results are written at once, so that they stay if a later case fails.
        options.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
