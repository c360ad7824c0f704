"""flex_attention on several devices of one host: batches, heads or sequences sharded; the same problem on 1, 2, 4, ... devices.

usage: PYTHONPATH=python .venv/bin/python bench/jax/sharding.py OUTPUT.json [--seq N] ... [--dtype float32]
"""

import argparse
import functools
import json
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
        part = functools.partial(
            context_parallel_attention, score_mod=mods[0], mask_mod=mods[1], axis_name="devices", strategy=strategy, striped=True
        )
        found[f"sequence_{strategy}"] = SEQUENCE, jax.shard_map(part, mesh=mesh, in_specs=SEQUENCE, out_specs=SEQUENCE)
    return found


def forward_and_backward(attention, q, k, v, d_o):
    o, pull_back = jax.vjp(attention, q, k, v)
    return o, pull_back(d_o)


def measure(count, tensors, options):
    mesh = jax.make_mesh((count,), ("devices",), axis_types=(AxisType.Auto,), devices=jax.devices()[:count])
    for name, (spec, attention) in attentions(mesh, zoo.alibi_slopes(options.heads)).items():
        entry = {"sharded": name, "devices": count}
        placed = [jax.device_put(x, NamedSharding(mesh, spec)) for x in tensors]
        try:
            entry |= milliseconds(jax.jit(functools.partial(forward_and_backward, attention)), *placed, calls=options.calls)
        except Exception as error:  # noqa: BLE001 (whatever goes wrong goes into the report)
            entry["refused"] = f"{type(error).__name__}: {error}".splitlines()[0][:500]
        print(entry, flush=True)
        yield entry


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    for name, default in (("batch", 4), ("heads", 16), ("seq", 16384), ("dim", 128), ("calls", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dtype", choices=["float32", "float16", "bfloat16"], default="bfloat16")
    options = parser.parse_args()
    size = (options.batch, options.seq, options.heads, options.dim)
    tensors = [jnp.asarray(np.random.default_rng(i).standard_normal(size, np.float32), options.dtype) for i in range(4)]
    counts = [2**i for i in range(jax.device_count().bit_length()) if options.batch % 2**i == 0]
    results = [entry for count in counts for entry in measure(count, tensors, options)]
    first = {entry["sharded"]: entry["ms"] for entry in results if entry["devices"] == 1 and "ms" in entry}
    for entry in results:
        if "ms" in entry and entry["sharded"] in first:
            entry["speedup"] = first[entry["sharded"]] / entry["ms"]
    report = provenance() | {"options": {name: value for name, value in vars(options).items() if name != "output"}, "results": results}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
