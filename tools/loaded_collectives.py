#!/usr/bin/env python3
"""Tests whether XLA's CPU client computes the same with a compiled program as with one loaded from JAX's compilation cache. Its programs pass
arrays around several devices in loops. Nothing of scoremod is in it.

    tools/loaded_collectives.py

With jaxlib 0.10.2 the process that compiles prints 0 wrong of 1200, and the one that loads ends in XLA's "Unexpected number of participants" or counts
wrong arrays.
"""

import os
import subprocess
import sys
import tempfile

SHARDS, ARRAYS, RUNS, STEPS = 4, 4, 300, 6


def run():
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import lax
    from jax.sharding import PartitionSpec as P

    mesh = jax.make_mesh((SHARDS,), ("shard",), axis_types=(jax.sharding.AxisType.Auto,))

    def step(x, number, at=jnp):
        return at.sin(x) if number % 2 else x + 1

    def passed_on(x, number):
        return lax.ppermute(step(x, number), "shard", [(i, (i + 1) % SHARDS) for i in range(SHARDS)])

    # Jitted, so that its calls below have the same collectives.
    @jax.jit
    def around(*arrays):
        results = []
        for number, x in enumerate(arrays):
            x = passed_on(x, number)
            x = lax.scan(lambda x, _, number=number: (passed_on(x, number), None), x, None, length=STEPS - 2)[0]
            results.append(passed_on(x, number))
        return tuple(results)

    def thrice(*arrays):
        found = around(*arrays), around(*map(jnp.cos, arrays)), around(*(x * 2 for x in arrays))
        return tuple(x + y * 10 + z * 100 for x, y, z in zip(*found))

    def expected(x, number):
        for _ in range(STEPS):
            x = np.roll(step(x, number, np), 1, axis=0)
        return x

    arrays = [np.arange(SHARDS * 1000 * (i + 1), dtype=np.float32).reshape(SHARDS, -1) * 0.001 + i for i in range(ARRAYS)]
    wanted = [expected(x, i) + 10 * expected(np.cos(x), i) + 100 * expected(x * 2, i) for i, x in enumerate(arrays)]
    sharded = (P("shard"),) * ARRAYS
    program = jax.jit(jax.shard_map(thrice, mesh=mesh, in_specs=sharded, out_specs=sharded))
    wrong = sum(not np.allclose(x, y, atol=1e-2) for _ in range(RUNS) for x, y in zip(program(*arrays), wanted))
    print(f"{wrong} wrong of {RUNS * ARRAYS}")


def main():
    if sys.argv[1:] == ["--run"]:
        return run()
    with tempfile.TemporaryDirectory() as cache:
        settings = {
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={SHARDS} --xla_backend_optimization_level=0",
            "JAX_COMPILATION_CACHE_DIR": cache,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        for what in ("compiles", "loads"):
            ran = subprocess.run([sys.executable, __file__, "--run"], env={**os.environ, **settings}, capture_output=True, text=True)
            failures = [line for line in ran.stderr.splitlines() if "Check failed" in line]
            print(f"{what}: {ran.stdout.strip() or failures[:1]} (exit {ran.returncode})")


if __name__ == "__main__":
    main()
