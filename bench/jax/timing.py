"""How long a compiled function takes."""

import statistics
import time

import jax


def milliseconds(function, *arguments, calls=10, repetitions=7):
    """{"ms": median, "spread_ms": largest - smallest} of one call, over repetitions of so many calls that are queued one after the other. The
    function is compiled and called before."""
    for _ in range(2):
        jax.block_until_ready(function(*arguments))
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        results = [function(*arguments) for _ in range(calls)]
        jax.block_until_ready(results)
        times.append(1e3 * (time.perf_counter() - start) / calls)
    return {"ms": statistics.median(times), "spread_ms": max(times) - min(times)}
