"""flex_attention under jit beside jax.nn.dot_product_attention(implementation="cudnn"), where that can, and dense attention.

usage: PYTHONPATH=python .venv/bin/python bench/jax/flex_attention.py OUTPUT.json [--batch N] [--seq N] ... [--dtype float32]

Times are of calls that are queued one after the other. What an implementation refuses is recorded with the reason.
"""

import argparse
import functools
import json
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from provenance import provenance
from timing import in_turns, milliseconds

from scoremod.jax import flex_attention, zoo

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "jax"))
from dense_attention import dense_attention


class Case(NamedTuple):
    """One attention: score_mod and mask_mod of scoremod, and jax.nn.dot_product_attention's way to say the same, if it has one."""

    score_mod: object
    mask_mod: object
    cudnn: dict | None


def cases(options):
    window = options.seq // 8
    slopes = zoo.alibi_slopes(options.heads)
    documents = zoo.documents(jnp.tile(jnp.arange(options.seq, dtype=jnp.int32) * 8 // options.seq, (options.batch, 1)))
    table = 0.1 * jax.random.normal(jax.random.key(9), (options.heads, 257))
    return {
        "plain": Case(None, None, {}),
        "causal": Case(None, zoo.causal(), {"is_causal": True}),
        "sliding_window": Case(None, zoo.causal_sliding_window(window), {"is_causal": True, "local_window_size": (window - 1, 0)}),
        "alibi": Case(zoo.alibi(slopes), zoo.causal(), None),
        "soft_cap": Case(zoo.soft_cap(50.0), zoo.causal(), None),
        "documents": Case(None, zoo.all_of(zoo.causal(), documents), None),
        "relative_table": Case(zoo.relative_table(table), None, None),
    }


def _identity(score, b, h, q_idx, kv_idx):
    return score


def _everything(b, h, q_idx, kv_idx):
    return jnp.bool_(True)


def implementations(case, backend):
    """name -> attention(q, k, v)."""
    found = {
        "scoremod": lambda q, k, v: flex_attention(q, k, v, case.score_mod, case.mask_mod, backend=backend),
        "dense": lambda q, k, v: dense_attention(q, k, v, case.score_mod or _identity, case.mask_mod or _everything),
    }
    if case.cudnn is not None:
        found["jax_cudnn"] = functools.partial(jax.nn.dot_product_attention, implementation="cudnn", **case.cudnn)
    return found


def forward_and_backward(attention):
    """o, and the gradients of q, k and v for a given gradient of o."""

    def run(q, k, v, d_o):
        o, pull_back = jax.vjp(attention, q, k, v)
        return o, pull_back(d_o)

    return run


def relative_error(results, truth):
    """The largest of all arrays' errors in the 2-norm."""
    pairs = zip(jax.tree.leaves(results), jax.tree.leaves(truth), strict=True)
    return max(float(jnp.linalg.norm((x.astype(jnp.float32) - y).ravel()) / jnp.linalg.norm(y.ravel())) for x, y in pairs)


def measure_case(case, tensors, options):
    """[{"implementation", "direction", "ms", ...}]"""
    with jax.default_matmul_precision("highest"):  # float32 products on a GPU are of fewer digits otherwise
        truth = jax.jit(forward_and_backward(implementations(case, None)["dense"]))(*(x.astype(jnp.float32) for x in tensors))
    measured = []
    for direction in ("forward", "forward_and_backward"):
        given, true = (tensors[:3], truth[0]) if direction == "forward" else (tensors, truth)
        ran = []
        for name, attention in implementations(case, options.backend).items():
            entry = {"implementation": name, "direction": direction}
            run = jax.jit(attention if direction == "forward" else forward_and_backward(attention))
            try:
                entry["relative_error"] = relative_error(run(*given), true)
                ran.append((entry, run))
            except Exception as error:  # noqa: BLE001 (whatever an implementation says goes into the report)
                entry["refused"] = f"{type(error).__name__}: {error}".splitlines()[0][:500]
            measured.append(entry)
        for (entry, _), times in zip(ran, in_turns([run for _, run in ran], given, calls=options.calls)):
            entry.update(times)
    return measured


def call_overhead(options):
    """Milliseconds of a call on tensors so small that the call is all there is: of XLA's own addition, and of attention."""
    q = jnp.ones((1, 64, 1, 64), options.dtype)
    measured = {"addition": milliseconds(jax.jit(lambda q: q + 1), q, calls=100)}
    for name, attention in implementations(cases(options)["plain"], options.backend).items():
        try:
            measured[name] = milliseconds(jax.jit(lambda q, f=attention: f(q, q, q)), q, calls=100)
        except Exception as error:  # noqa: BLE001
            measured[name] = {"refused": f"{type(error).__name__}: {error}".splitlines()[0][:500]}
    return measured


def with_ratios(results):
    """Each of scoremod's times over jax_cudnn's, where both have one."""
    times = {(x["case"], x["direction"], x["implementation"]): x["ms"] for x in results if "ms" in x}
    for entry in results:
        reference = times.get((entry["case"], entry["direction"], "jax_cudnn"))
        if entry["implementation"] == "scoremod" and "ms" in entry and reference:
            entry["ratio_to_jax_cudnn"] = entry["ms"] / reference
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    for name, default in (("batch", 4), ("heads", 16), ("seq", 4096), ("dim", 128), ("calls", 10)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dtype", choices=["float32", "float16", "bfloat16"], default="bfloat16")
    parser.add_argument("--backend", help="flex_attention's; without it, the platform's own")
    parser.add_argument("--case", action="append", help="only this one; may be repeated")
    options = parser.parse_args()
    size = (options.batch, options.seq, options.heads, options.dim)
    tensors = [jnp.asarray(np.random.default_rng(i).standard_normal(size, np.float32), options.dtype) for i in range(4)]
    report = provenance() | {
        "options": {name: value for name, value in vars(options).items() if name != "output"},
        "call_overhead": call_overhead(options),
        "results": [],
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    for name, case in cases(options).items():
        if options.case and name not in options.case:
            continue
        report["results"] += with_ratios([{"case": name, **entry} for entry in measure_case(case, tensors, options)])
        print(*(entry for entry in report["results"] if entry["case"] == name), sep="\n", flush=True)
        # After every case: a run that is cut off leaves what it had.
        options.output.write_text(json.dumps(report, indent=1) + "\n")
    for entry in report["results"]:
        if "ratio_to_jax_cudnn" in entry:
            print(f"{entry['case']} {entry['direction']}: {entry['ms']:.3f} ms, {entry['ratio_to_jax_cudnn']:.3f} of jax_cudnn's")


if __name__ == "__main__":
    main()
