#!/usr/bin/env python3
"""Says of measure.py's report where the engine that the planner chose was not the fastest one, and what that cost.

usage: choices.py RESULTS.json
"""

import json
import statistics
import sys

ENGINES = ("scoremod_cudnn", "scoremod_kernels")
# Two measurements of one kernel are that far apart: less is no wrong choice.
NOISE = 0.02


def times_of(report):
    """(case, direction) -> implementation -> milliseconds."""
    found = {}
    for row in report["results"]:
        if "ms" in row:
            found.setdefault((row["case"], row["direction"]), {})[row["implementation"]] = row["ms"]
    return found


def wrong_choices(report):
    """[(case, direction, part of the time that is lost, the faster engine)], the dearest first."""
    wrong = []
    for (case, direction), times in times_of(report).items():
        engines = {name: times[name] for name in ENGINES if name in times}
        if "scoremod" not in times or not engines:
            continue
        best = min(engines, key=engines.get)
        lost = times["scoremod"] / engines[best] - 1
        if lost > NOISE:
            wrong.append((case, direction, lost, best.removeprefix("scoremod_")))
    return sorted(wrong, key=lambda each: -each[2])


def against_peers(report):
    """[(case, direction, the best peer's time by ours, the peer)], the worst first."""
    found = []
    for (case, direction), times in times_of(report).items():
        peers = {name: ms for name, ms in times.items() if not name.startswith("scoremod")}
        if "scoremod" in times and peers:
            best = min(peers, key=peers.get)
            found.append((case, direction, peers[best] / times["scoremod"], best))
    return sorted(found, key=lambda each: each[2])


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        report = json.load(file)
    wrong = wrong_choices(report)
    print(f"not the fastest engine chosen: {len(wrong)} of {len(times_of(report))}")
    for case, direction, lost, best in wrong:
        print(f"  {case} {direction}: {best} takes {100 * lost / (1 + lost):.0f} % less")
    ratios = against_peers(report)
    if ratios:
        print(f"the best peer's time by ours: geometric mean {statistics.geometric_mean(ratio for _, _, ratio, _ in ratios):.2f}, of {len(ratios)}")
    for case, direction, ratio, peer in ratios:
        if ratio < 1:
            print(f"  {case} {direction}: {peer}, {ratio:.2f}")


if __name__ == "__main__":
    main()
