"""Times of calls, which take turns, so that a GPU's changing clocks meet all alike."""

import statistics
import time

import torch

MAX_ROUNDS = 11
MIN_ROUNDS = 3
# For all rounds of one call: what takes long is measured less often.
SECONDS = 0.6


def warmed(call):
    """Calls it until it is compiled; None, or the first line of what it raised: what another implementation raises is its own."""
    try:
        for _ in range(3):
            call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    except Exception as error:
        return (str(error) or type(error).__name__).splitlines()[0][:200]
    return None


def median_in_turns(calls, device):
    """name -> milliseconds, the median of the call's rounds."""
    times = {name: [_milliseconds(call, device)] for name, call in calls.items()}
    rounds = {name: min(MAX_ROUNDS, max(MIN_ROUNDS, int(SECONDS * 1e3 / first))) for name, (first,) in times.items()}
    for number in range(1, MAX_ROUNDS):
        for name, call in calls.items():
            if number < rounds[name]:
                times[name].append(_milliseconds(call, device))
    return {name: round(statistics.median(values), 4) for name, values in times.items()}


# Cycles of work for a GPU (some 1.5 ms) ahead of each timed call. The GPU is busy while the host enqueues the call, so that only the device's
# time is measured; the host's is measured by itself.
_CYCLES = 3_000_000


def _milliseconds(call, device):
    if device == "cuda":
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(_CYCLES)
        begin.record()
        call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1e3
