#!/usr/bin/env python3
"""Adds FlashAttention-3 to measure.py's report: flash_attn3_jax beside scoremod in JAX, in turns in one process, where the report has the case.

usage: PYTHONPATH=python python bench/peers/fa3.py REPORT.json [--seconds N] [--cases A,B]

A row's `ms` is scoremod's time in that report, scaled by the ratio of FlashAttention-3 to scoremod here; their own times are `reference_ms` and
`ours_ms`. So JAX's own time of a call doesn't stand beside PyTorch's. flash_attn3_jax's wheel is made for Hopper and head dim 128.
Cases that have such rows, or that it refused, are not measured again.
"""

import argparse
import contextlib
import functools
import json
import sys
import time
from importlib import metadata
from pathlib import Path

import jax
import jax.numpy as jnp

from scoremod.jax import flex_attention, zoo

sys.path.append(str(Path(__file__).resolve().parents[1] / "jax"))
from timing import in_turns

NAME, OURS = "fa3", "scoremod"
# Modifiers that flash_mha has words for.
MODIFIERS = {"full", "causal", "window_512", "varlen_lognormal", "varlen_lognormal_causal", "varlen_one_long", "varlen_one_long_causal"}
MAX_DIFFERENCE = {"bfloat16": 2**-6, "float16": 2**-8, "float32": 2**-15}


def sayable(case):
    """Whether FlashAttention-3 has words for a case of the report, and its wheel kernels."""
    return case["modifier"] in MODIFIERS and case["dim"] == case["dim_v"] == 128


def words_of(case):
    """(causal, window in keys or None) of a case of the report."""
    return "causal" in case["modifier"] or "window" in case["modifier"], case.get("window")


def fa3(case, ends):
    """attention(q, k, v): FlashAttention-3 in [batch, seq, heads, dim]."""
    from flash_attn3_jax import flash_mha, flash_mha_varlen

    is_causal, window = words_of(case)
    if ends is not None:
        longest = max(case["lengths"])
        call = functools.partial(flash_mha_varlen, cu_seqlens_q=ends, cu_seqlens_k=ends, max_seqlen_q=longest, max_seqlen_k=longest, is_causal=is_causal)
        return lambda q, k, v: call(q[0], k[0], v[0])[None]
    sizes = (-1, -1) if window is None else (window - 1, 0)
    return lambda q, k, v: flash_mha(q, k, v, is_causal=is_causal, window_size=sizes)


def ours(case, ends, backend):
    is_causal, window = words_of(case)
    mask = zoo.causal_sliding_window(window) if window is not None else zoo.causal() if is_causal else None
    if ends is not None:
        call = functools.partial(flex_attention, layout="THD", q_offsets=ends, kv_offsets=ends, max_length=max(case["lengths"]), backend=backend)
        return lambda q, k, v: call(q[0], k[0], v[0], None, mask)[None]
    return lambda q, k, v: flex_attention(q, k, v, None, mask, backend=backend)


def tensors(case):
    keys = jax.random.split(jax.random.key(0), 4)

    def one(key, heads, length, dim):
        return jax.random.normal(key, (case["batch"], length, heads, dim)).astype(case["dtype"])

    q, k = one(keys[0], case["heads"], case["queries"], case["dim"]), one(keys[1], case["kv_heads"], case["keys"], case["dim"])
    return q, k, one(keys[2], case["kv_heads"], case["keys"], case["dim_v"]), one(keys[3], case["heads"], case["queries"], case["dim_v"])


def difference(x, y):
    x, y = x.astype(jnp.float32), y.astype(jnp.float32)
    return float(jnp.linalg.norm(x - y) / jnp.linalg.norm(x))


def directions_of(attention, q, k, v, d_o):
    """direction -> a compiled function without arguments. The backward begins with what one forward left."""
    forward = jax.jit(attention)
    pull_back = jax.jit(lambda q, k, v: jax.vjp(attention, q, k, v)[1])(q, k, v)
    backward = jax.jit(lambda pull_back, d_o: pull_back(d_o))
    return {"forward": lambda: forward(q, k, v), "backward": lambda: backward(pull_back, d_o)}


def first_line(error):
    return (str(error) or type(error).__name__).splitlines()[0][:200]


def measured(case, backend, attention=fa3):
    """direction -> {"reference_ms", "ours_ms"}, or {"refused"}: FlashAttention-3's time and scoremod's."""
    ends = jnp.cumsum(jnp.asarray([0, *case["lengths"]], jnp.int32)).astype(jnp.int32) if case.get("lengths") else None
    q, k, v, d_o = tensors(case)
    try:
        theirs, own = (directions_of(make, q, k, v, d_o) for make in (attention(case, ends), ours(case, ends, backend)))
        apart = max(difference(x, y) for x, y in zip(jax.tree.leaves([f() for f in own.values()]), jax.tree.leaves([f() for f in theirs.values()])))
    except Exception as error:  # what another library raises is its own
        return {direction: {"refused": first_line(error)} for direction in ("forward", "backward")}
    if not apart <= MAX_DIFFERENCE[case["dtype"]]:
        return {direction: {"refused": f"its results are {apart:.2g} from scoremod's"} for direction in ("forward", "backward")}
    found = {}
    for direction in own:
        ours_ms, reference_ms = (each["ms"] for each in in_turns([own[direction], theirs[direction]], ()))
        found[direction] = {"reference_ms": round(reference_ms, 4), "ours_ms": round(ours_ms, 4)}
    return found


def rows_of(name, found, times):
    """Rows of the report: FlashAttention-3's times, scaled to scoremod's (case, direction) -> ms of the report."""
    rows = []
    for direction, what in found.items():
        if (name, direction) not in times:
            continue
        scaled = {} if "refused" in what else {"ms": round(times[name, direction] * what["reference_ms"] / what["ours_ms"], 4)}
        rows.append({"case": name, "direction": direction, "implementation": NAME, **scaled, **what})
    return rows


def versions():
    found = {"jax": jax.__version__}
    with contextlib.suppress(metadata.PackageNotFoundError):
        found["flash-attn3-jax"] = metadata.version("flash-attn3-jax")
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("report", type=Path)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--cases", default="")
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    report = json.loads(options.report.read_text(encoding="utf-8"))
    times = {(row["case"], row["direction"]): row["ms"] for row in report["results"] if row["implementation"] == OURS and "ms" in row}
    done = {row["case"] for row in report["results"] if row["implementation"] == NAME}
    report["versions"] |= versions()
    for name, case in report["cases"].items():
        if name in done or not sayable(case) or (options.cases and name not in options.cases.split(",")):
            continue
        if time.monotonic() > deadline:
            print("no time was left for", name, "and what follows it")
            break
        rows = rows_of(name, measured(case, None), times)
        report["results"] += rows
        print(name, *({key: value for key, value in row.items() if key not in ("case", "implementation")} for row in rows), flush=True)
        options.report.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
