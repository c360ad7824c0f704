#!/usr/bin/env python3
"""Adds FlashAttention-3 to beside_flashinfer.py's report: flash_attn3_jax beside scoremod in JAX, in turns in one process, over the report's batches.

usage: PYTHONPATH=python python bench/serving/beside_fa3.py REPORT.json [--seconds N]

A row's `ms` is scoremod's time in that report, scaled by the ratio of FlashAttention-3 to scoremod here; their own times are `reference_ms` and
`ours_ms`. FlashAttention-3 is told its number of splits (split-KV), of which the fastest is taken. flash_attn3_jax's wheel is made for
Hopper and head dim 128, and takes batches whose sequences have as many queries each.
"""

import argparse
import json
import random
import sys
import time
from importlib import metadata
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from batches import batches

from scoremod.jax import flex_attention

sys.path.append(str(Path(__file__).resolve().parents[1] / "jax"))
from timing import in_turns

NAME, OURS = "flash-attention-3", "scoremod"
SPLITS = (1, 2, 4, 8, 16, 32)
SCALE = 0.1
MOST_DIFFERENCE = 2**-6


def sayable(batch):
    return batch.one_count is not None and batch.dim == 128 and not batch.is_latent and batch.dtype_kv == "bfloat16"


def tensors(batch, seed):
    """(query, pages of keys, pages of values, page table, lengths) in [batch, sequence, heads, dim]."""
    choose = random.Random(seed)
    keys = jax.random.split(jax.random.key(seed), 3)
    pool = (sum(batch.pages), batch.page, batch.kv_heads, batch.dim)
    query = (len(batch.lengths), batch.one_count, batch.heads, batch.dim)
    order = list(range(pool[0]))
    choose.shuffle(order)
    table = np.zeros((len(batch.lengths), max(batch.pages)), np.int32)
    for sequence, pages in enumerate(batch.pages):
        table[sequence, :pages], order = order[:pages], order[pages:]
    made = [jax.random.normal(key, shape, jnp.bfloat16) for key, shape in zip(keys, (query, pool, pool), strict=True)]
    return *made, jnp.asarray(table), jnp.asarray(batch.lengths, jnp.int32)


def attentions():
    """(scoremod's function, [FlashAttention-3's, one for each number of splits]) of tensors()."""
    from flash_attn3_jax import flash_mha_with_kvcache

    def ours(q, k, v, table, lengths):
        return flex_attention(q, k, v, None, "causal_bottom_right", page_table=table, lengths=lengths, scale=SCALE)

    def theirs(splits):
        def call(q, k, v, table, lengths):
            options = {"cache_seqlens": lengths, "page_table": table, "softmax_scale": SCALE, "is_causal": True, "num_splits": splits}
            return flash_mha_with_kvcache(q, k, v, **options)

        return jax.jit(call)

    return jax.jit(ours), {splits: theirs(splits) for splits in SPLITS}


def measured(batch, seed):
    arguments = tensors(batch, seed)
    ours, theirs = attentions()
    expected = ours(*arguments).astype(jnp.float32)
    timed, refused = {}, "no number of splits"
    for splits, call in theirs.items():
        try:
            found = call(*arguments).astype(jnp.float32)
            apart = float(jnp.linalg.norm(found - expected) / jnp.linalg.norm(expected))
        except Exception as error:  # what another library raises is its own
            refused = (str(error) or type(error).__name__).splitlines()[0][:200]
            continue
        if apart <= MOST_DIFFERENCE:
            timed[splits] = call
        else:
            refused = f"its results are {apart:.2g} from scoremod's"
    if not timed:
        return {"refused": refused}
    own, *others = (each["ms"] for each in in_turns([ours, *timed.values()], arguments))
    fastest = min(range(len(others)), key=others.__getitem__)
    return {"reference_ms": round(others[fastest], 4), "ours_ms": round(own, 4), "splits": list(timed)[fastest]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=Path)
    parser.add_argument("--seconds", type=float, default=1e9)
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    report = json.loads(options.report.read_text(encoding="utf-8"))
    report["versions"] |= {name: metadata.version(name) for name in ("jax", "flash-attn3-jax")}
    ours = {row["case"]: row for row in report["results"] if row["implementation"] == OURS and "ms" in row}
    done = {row["case"] for row in report["results"] if row["implementation"] == NAME}
    for name, batch in batches(report["seed"], report.get("part", 1)).items():
        if name in done or name not in ours or not sayable(batch):
            continue
        if time.monotonic() > deadline:
            print("no time was left for", name, "and what follows it")
            break
        row = {"case": name, "commit": ours[name]["commit"], "implementation": NAME, **measured(batch, report["seed"])}
        if "reference_ms" in row:
            ratio = row["reference_ms"] / row["ours_ms"]
            row["ms"] = round(ours[name]["ms"] * ratio, 4)
            row["of_copy"] = round(ours[name]["of_copy"] / ratio, 3)
        report["results"].append(row)
        print(json.dumps(row), flush=True)
        options.report.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
