"""One process of several that jax.distributed joins on one host: sharded and context-parallel attention against the whole computation.

usage: distributed_processes.py PROCESSES NUMBER PORT
"""

import functools
import sys

import jax

PROCESSES, NUMBER, PORT = map(int, sys.argv[1:4])
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"localhost:{PORT}", num_processes=PROCESSES, process_id=NUMBER)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.experimental import multihost_utils  # noqa: E402
from jax.sharding import AxisType, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

from scoremod.jax import flex_attention, zoo  # noqa: E402
from scoremod.jax.context_parallel import context_parallel_attention  # noqa: E402

BATCH, SEQ, HEADS, DIM = 4, 32, 4, 8
SLOPES = np.linspace(0.1, 1, HEADS).astype(np.float32)


def score_mod(score, b, h, q_idx, kv_idx):
    return jnp.tanh(score) + jnp.asarray(SLOPES)[h] * jnp.float32(kv_idx - q_idx) + 0.25 * jnp.float32(b)


def main():
    assert jax.process_count() == PROCESSES and jax.device_count() == PROCESSES
    rng = np.random.default_rng(1)  # the same in every process
    arrays = [rng.standard_normal((BATCH, SEQ, HEADS, DIM)).astype(np.float32) for _ in range(4)]
    mesh = jax.make_mesh((PROCESSES,), ("shards",), axis_types=(AxisType.Auto,))
    part = functools.partial(context_parallel_attention, score_mod=score_mod, mask_mod=zoo.causal(), axis_name="shards")
    attention = functools.partial(flex_attention, score_mod=score_mod, mask_mod=zoo.causal())
    sequence = P(None, "shards")
    cases = {
        "batch": (P("shards"), attention),
        "heads": (P(None, None, "shards"), attention),
        **{
            strategy: (sequence, jax.shard_map(functools.partial(part, strategy=strategy), mesh=mesh, in_specs=sequence, out_specs=sequence))
            for strategy in ("ring", "all_gather")
        },
    }

    def results(function, q, k, v, d_o):
        o, pull_back = jax.vjp(function, q, k, v)
        return o, *pull_back(d_o)

    # By this process alone.
    with jax.default_device(jax.local_devices()[0]):
        whole = [np.asarray(x) for x in results(attention, *map(jnp.asarray, arrays))]
    for name, (spec, function) in cases.items():
        sharding = NamedSharding(mesh, spec)
        placed = [jax.make_array_from_callback(x.shape, sharding, lambda index, x=x: x[index]) for x in arrays]
        found = jax.jit(functools.partial(results, function))(*placed)
        for expected, each in zip(whole, found, strict=True):
            gathered = np.asarray(multihost_utils.process_allgather(each, tiled=True))
            np.testing.assert_allclose(gathered, expected, rtol=2e-5, atol=2e-5, err_msg=name)
            assert np.abs(gathered).max() > 0.1
        print(f"process {NUMBER}: {name} is right", flush=True)


main()
