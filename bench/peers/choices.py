#!/usr/bin/env python3
"""Says of measure.py's report where the engine that the planner chose was not the fastest one, and what that cost.

usage: choices.py RESULTS.json [--table]

With --table it prints all cases as docs/performance.md shows them, in place of that.
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


def table(report):
    """Lines of Markdown: each case's best peer and scoremod, ms, forward and backward. `-` where no peer runs it."""
    found = times_of(report)
    engines = {(row["case"], row["direction"]): row["engine"] for row in report["results"] if row["implementation"] == "scoremod" and "ms" in row}
    lines = ["| case | best peer: forward | backward | scoremod: forward | backward |", "|---|---|---|---|---|"]
    for case in dict.fromkeys(case for case, _ in found):
        peers, ours = [], []
        for at in ((case, "forward"), (case, "backward")):
            times = found.get(at, {})
            others = {name: ms for name, ms in times.items() if name != "scoremod" and name not in ENGINES}
            best = min(others, key=others.get, default=None)
            peers.append("-" if best is None else f"{others[best]:.3f} {best}")
            ours.append(f"{times['scoremod']:.3f} {engines[at]}" if "scoremod" in times else "-")
        lines.append(f"| `{case}` | {' | '.join(peers + ours)} |")
    return lines


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        report = json.load(file)
    if "--table" in sys.argv[2:]:
        print("\n".join(table(report)))
        return
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
