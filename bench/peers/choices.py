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


def table(report):
    """docs/performance.md's table, lines of Markdown: each case's best peer and scoremod, ms, forward and backward. `-` where no peer runs it."""
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


def slower(report):
    """Lines of Markdown: all cases in one number, the engines that were chosen wrongly, and the cases where a peer is faster, the worst first."""
    ratios, wrong = against_peers(report), wrong_choices(report)
    lines = []
    if ratios:
        mean = statistics.geometric_mean(ratio for _, _, ratio, _ in ratios)
        lines.append(f"The best peer of a case takes {mean:.2f} times scoremod's time in the geometric mean of {len(ratios)} cases and directions.")
    lost_by = [f" `{case}` {direction}: {best} takes {100 * lost / (1 + lost):.0f} % less." for case, direction, lost, best in wrong]
    lines.append(f"Not the fastest engine chosen: {len(wrong)} of {len(times_of(report))}.{''.join(lost_by)}")
    lines += ["", "| a peer is faster | | peer | its time by scoremod's |", "|---|---|---|---|"]
    return lines + [f"| `{case}` | {direction} | {peer} | {ratio:.2f} |" for case, direction, ratio, peer in ratios if round(ratio, 2) < 1]


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        print("\n".join(slower(json.load(file))))


if __name__ == "__main__":
    main()
