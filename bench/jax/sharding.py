"""flex_attention on several devices of one host: batches, heads or sequences sharded; the same problem on 1, 2, 4, ... devices.

usage: PYTHONPATH=python .venv/bin/python bench/jax/sharding.py OUTPUT.json [--seq N] ... [--dtype float32] [--parts]

--parts breaks the time down. It also times the forward alone, and on one device the attention of each part of a ring's step. It prints the
order in which a program runs calls, transfers and passes over memory; calls have the numbers of their problems, which are listed once.
"""

import argparse
import functools
import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from provenance import provenance
from timing import milliseconds

from scoremod.jax import flex_attention, zoo
from scoremod.jax.context_parallel import context_parallel_attention

# Which dimension of [batch, seq, heads, dim] is sharded -> how.
SPECS = {"batch": P("devices"), "heads": P(None, None, "devices")}
SEQUENCE = P(None, "devices")


def attentions(mesh, slopes):
    """name -> (sharding of the tensors, attention(q, k, v)). Sequences are striped, so each shard has as much to do."""
    mods = zoo.alibi(slopes), zoo.causal()
    found = {name: (spec, lambda q, k, v: flex_attention(q, k, v, *mods)) for name, spec in SPECS.items()}
    for strategy in ("ring", "all_gather"):
        part = functools.partial(context_parallel_attention, score_mod=mods[0], mask_mod=mods[1], axis_name="devices", strategy=strategy, striped=True)
        found[f"sequence_{strategy}"] = SEQUENCE, jax.shard_map(part, mesh=mesh, in_specs=SEQUENCE, out_specs=SEQUENCE)
    return found


def forward_and_backward(attention, q, k, v, d_o):
    o, pull_back = jax.vjp(attention, q, k, v)
    return o, pull_back(d_o)


def forward(attention, q, k, v, d_o):
    return attention(q, k, v)


# The instructions that take time in XLA's text of a compiled program: calls, transfers, and passes over large arrays.
RUNS = re.compile(
    r"= (?P<type>\(.*?\)|\S+) (?P<operation>custom-call|conditional|while|fusion|copy|async|(?:all|reduce|collective)-\w+)(?P<ends>-start|-done)?\("
)


def schedule(compiled, problems):
    """The instructions of a compiled program in their order, and its problems. Each problem has its number in `problems`, or gets one there."""
    lines, is_inside_of_a_pass = [], False
    for line in compiled.as_text().splitlines():
        found = RUNS.search(line)
        if line.startswith(("%", "ENTRY")):
            is_inside_of_a_pass = line.startswith(("%fused", "%wrapped"))
            lines.append(line.split(" (")[0])
        elif found and not is_inside_of_a_pass and re.search(r"\w+\[(\d+,){3,}\d+\]", found["type"]):  # of the tensors' rank
            target = re.search(r'custom_call_target="(\w+)"', line)
            problem = re.search(r'problem = "([^"]*)"', line)
            number = f" of problem {problems.setdefault(problem[1], len(problems))}" if problem else ""
            what = target[1] if target else found["operation"] + (found["ends"] or "")
            lines.append(f"    {what}{number} -> {found['type'][:120]}")
    # Computations without any are left out.
    return [line for line, following in zip(lines, [*lines[1:], ""]) if line.startswith(" ") or following.startswith(" ")]


def unescaped(text):
    """A string of XLA's text, whose special characters are two hexadecimal digits after a backslash."""
    return re.sub(r"\\(\\|[0-9A-F]{2})", lambda code: code[1] if code[1] == "\\" else chr(int(code[1], 16)), text)


def ring_parts(count, slopes):
    """distance -> attention(q, k, v) of one shard's queries to the keys of a shard at that distance, of striped sequences."""

    def part(distance):
        score_mod = lambda score, b, h, q_idx, kv_idx: score + slopes[h] * (count * (kv_idx - q_idx) - distance)  # noqa: E731
        mask_mod = lambda b, h, q_idx, kv_idx: kv_idx <= q_idx if distance >= 0 else kv_idx < q_idx  # noqa: E731
        return lambda q, k, v: flex_attention(q, k, v, score_mod, mask_mod)

    return {distance: part(distance) for distance in (0, 1, -1)}


def timed(run, placed, options):
    try:
        return milliseconds(run, *placed, calls=options.calls)
    except Exception as error:  # noqa: BLE001 (whatever goes wrong goes into the report)
        return {"refused": f"{type(error).__name__}: {error}".splitlines()[0][:500]}


def measure_parts(count, tensors, options):
    """Times of each part of a ring's steps by itself, without o, lse and deltas of other parts."""
    slopes = zoo.alibi_slopes(options.heads)
    placed = [jax.device_put(x[:, : options.seq // count], jax.devices()[0]) for x in tensors]
    for distance, attention in ring_parts(count, slopes).items():
        entry = {"part": distance, "of_shards": count}
        for name, run in (("forward", forward), ("forward_and_backward", forward_and_backward)):
            entry[name] = timed(jax.jit(functools.partial(run, attention)), placed, options)
        print(entry, flush=True)
        yield entry


def measure(count, tensors, options, problems):
    mesh = jax.make_mesh((count,), ("devices",), axis_types=(AxisType.Auto,), devices=jax.devices()[:count])
    for name, (spec, attention) in attentions(mesh, zoo.alibi_slopes(options.heads)).items():
        entry = {"sharded": name, "devices": count}
        placed = [jax.device_put(x, NamedSharding(mesh, spec)) for x in tensors]
        both = jax.jit(functools.partial(forward_and_backward, attention))
        entry |= timed(both, placed, options)
        if options.parts and "ms" in entry:
            entry["forward"] = timed(jax.jit(functools.partial(forward, attention)), placed, options)
            entry["schedule"] = schedule(both.lower(*placed).compile(), problems)
        print({name: value for name, value in entry.items() if name != "schedule"}, *entry.get("schedule", ()), sep="\n", flush=True)
        yield entry


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    for name, default in (("batch", 4), ("heads", 16), ("seq", 16384), ("dim", 128), ("calls", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dtype", choices=["float32", "float16", "bfloat16"], default="bfloat16")
    parser.add_argument("--parts", action="store_true", help="say where the time goes")
    options = parser.parse_args()
    size = (options.batch, options.seq, options.heads, options.dim)
    tensors = [jnp.asarray(np.random.default_rng(i).standard_normal(size, np.float32), options.dtype) for i in range(4)]
    counts = [2**i for i in range(jax.device_count().bit_length()) if options.batch % 2**i == 0]
    problems = {}
    results = [entry for count in counts for entry in measure(count, tensors, options, problems)]
    first = {entry["sharded"]: entry["ms"] for entry in results if entry["devices"] == 1 and "ms" in entry}
    for entry in results:
        if "ms" in entry and entry["sharded"] in first:
            entry["speedup"] = first[entry["sharded"]] / entry["ms"]
    report = provenance() | {"options": {name: value for name, value in vars(options).items() if name != "output"}, "results": results}
    if options.parts:
        report["parts"] = [entry for count in counts[1:] for entry in measure_parts(count, tensors, options)]
        report["problems"] = [json.loads(unescaped(problem)) for problem in problems]
        for number, problem in enumerate(report["problems"]):
            print(f"problem {number}: {json.dumps({name: value for name, value in problem.items() if name != 'program'})}", problem["program"], sep="\n")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
