"""How long compiled functions take."""

import statistics
import time

import jax


def milliseconds(function, *arguments, calls=10, repetitions=7):
    """{"ms": median, "spread_ms": largest - smallest} of one call, over repetitions of so many calls that are queued one after the other. The
    function is compiled and called before."""
    return in_turns([function], arguments, calls, repetitions)[0]


def in_turns(functions, arguments, calls=10, repetitions=7):
    """milliseconds() of each function, with the repetitions of all in turns: a clock that changes meanwhile does so for each."""
    times = [[] for _ in functions]
    for repetition in range(-1, repetitions):  # the first one warms up
        for function, own in zip(functions, times):
            start = time.perf_counter()
            results = [function(*arguments) for _ in range(calls)]
            jax.block_until_ready(results)
            if repetition >= 0:
                own.append(1e3 * (time.perf_counter() - start) / calls)
    return [{"ms": statistics.median(own), "spread_ms": max(own) - min(own)} for own in times]
