#!/usr/bin/env python3
"""Times cuDNN's plans of varlen sequences and paged KV caches beside scoremod's own kernels, and compares their results, on a machine with a GPU.

usage: cudnn_sequences.py REPORT.json [--seconds 90] [--machine M] [--commit C]

Each case is timed by events, in milliseconds, the median of 15 calls. `differences` are those of o, dq, dk and dv, relative to cuDNN's norm. A case that one of
the two refuses has its words. No case begins after so many seconds: cuDNN builds a plan for each direction.
"""

import argparse
import json
import statistics
import time

import torch

from scoremod.torch import flex_attention

ENGINES = ("kernels", "cudnn")
CALLS = 15


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def soft_cap(score, b, h, q_idx, kv_idx):
    return 30 * torch.tanh(score / 30)


def alibi(slopes):
    return lambda score, b, h, q_idx, kv_idx: score + slopes[h] * (kv_idx - q_idx)


def milliseconds(call):
    for _ in range(4):
        call()
    torch.cuda.synchronize()
    times = []
    for _ in range(CALLS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def normal(*shape):
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def varlen(lengths, heads, heads_kv, dim, score_mod, mask_mod):
    """(a function of the backends that gives o, the tensors whose gradients it has)"""
    offsets = torch.tensor([0, *lengths], device="cuda").cumsum(0).int()
    q, k, v = (normal(sum(lengths), each, dim).requires_grad_() for each in (heads, heads_kv, heads_kv))
    options = dict(mask_mod=mask_mod, enable_gqa=True, q_offsets=offsets, kv_offsets=offsets, max_length=max(lengths), new_sizes="wait")
    return lambda backends: flex_attention(q, k, v, score_mod, backends=backends, **options), (q, k, v)


def paged(batch, queries, longest, heads, heads_kv, dim, page, score_mod):
    pages = -(-longest // page)
    table = torch.randperm(batch * pages, device="cuda").int().reshape(batch, pages)
    lengths = torch.randint(1, longest + 1, (batch,), device="cuda", dtype=torch.int32)
    q, k, v = normal(batch, heads, queries, dim), *(normal(batch * pages, heads_kv, page, dim) for _ in range(2))
    options = dict(enable_gqa=True, lengths=lengths, page_table=table, new_sizes="wait")
    return lambda backends: flex_attention(q, k, v, score_mod, backends=backends, **options), ()


def cases():
    slopes = 2.0 ** -torch.arange(1.0, 33.0, device="cuda")
    yield "varlen causal 8 of 2048, d128", lambda: varlen([2048] * 8, 16, 16, 128, None, causal)
    yield "varlen full lognormal, d128", lambda: varlen([300, 8000, 1200, 4000, 700, 2200], 16, 16, 128, None, None)
    yield "varlen soft cap causal 32/8, d128", lambda: varlen([4096] * 4, 32, 8, 128, soft_cap, causal)
    yield "varlen alibi causal 32/8, d64", lambda: varlen([1024] * 16, 32, 8, 64, alibi(slopes), causal)
    yield "varlen causal d256", lambda: varlen([4096] * 2, 8, 8, 256, None, causal)
    yield "paged decode 64 of 8192, page 64", lambda: paged(64, 1, 8192, 32, 8, 128, 64, None)
    yield "paged decode soft cap, page 16", lambda: paged(64, 1, 4096, 32, 8, 128, 16, soft_cap)
    yield "paged 512 queries, page 64", lambda: paged(4, 512, 8192, 32, 8, 128, 64, None)
    yield "varlen soft cap full d128", lambda: varlen([4096] * 4, 16, 16, 128, soft_cap, None)
    yield "varlen short causal d128", lambda: varlen([128] * 128, 16, 16, 128, None, causal)


def measured(name, make):
    run, inputs = make()
    row, found = {"case": name, "backward": bool(inputs)}, {}
    for engine in ENGINES:
        try:
            o = run(engine)
            row[f"{engine} forward"] = milliseconds(lambda engine=engine: run(engine))
            found[engine] = [o.detach()]
            if inputs:
                d_o = torch.ones_like(o) + o.detach()
                gradients = lambda o=o, d_o=d_o: torch.autograd.grad(o, inputs, d_o, retain_graph=True)  # noqa: E731
                found[engine] += gradients()
                row[f"{engine} backward"] = milliseconds(gradients)
        except RuntimeError as refused:
            row[f"{engine} refuses"] = str(refused)[:600]
    if len(found) == len(ENGINES):
        pairs = list(zip(*(found[engine] for engine in ENGINES), strict=True))
        row["differences"] = [((a.float() - b.float()).norm() / b.float().norm()).item() for a, b in pairs]
        row["nans"] = [bool(torch.isnan(b).any()) for _, b in pairs]
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("report")
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--machine", default="")
    parser.add_argument("--commit", default="")
    arguments = parser.parse_args()
    end, rows = time.monotonic() + arguments.seconds, []
    for name, make in cases():
        if time.monotonic() > end:
            break
        rows.append(measured(name, make))
        print(json.dumps(rows[-1]), flush=True)
    with open(arguments.report, "w", encoding="utf-8") as report:
        json.dump({"machine": arguments.machine, "commit": arguments.commit, "times": rows}, report, indent=1)


if __name__ == "__main__":
    main()
