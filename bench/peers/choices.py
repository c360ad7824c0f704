#!/usr/bin/env python3
"""Says of measure.py's report where the engine that the planner chose was not the fastest one and what that cost, and writes the pages' tables of it.

usage: choices.py RESULTS.json
"""

import json
import statistics
import sys

ENGINES = ("scoremod_cudnn", "scoremod_kernels")
# The regret that a row should not exceed. Two measurements of one kernel are up to 0.02 apart.
MAX_REGRET = 1.03
MASK_IN_CALL = "_mask_in_call"


def times_of(report):
    """(case, direction) -> implementation -> milliseconds."""
    found = {}
    for row in report["results"]:
        if "ms" in row:
            found.setdefault((row["case"], row["direction"]), {})[row["implementation"]] = row["ms"]
    return found


def regrets(report):
    """[(case, direction, the time of what the planner chose by the fastest engine's, that engine)], the greatest first."""
    found = []
    for (case, direction), times in times_of(report).items():
        engines = {name: times[name] for name in ENGINES if name in times}
        if "scoremod" in times and engines:
            best = min(engines, key=engines.get)
            found.append((case, direction, times["scoremod"] / engines[best], best.removeprefix("scoremod_")))
    return sorted(found, key=lambda each: -each[2])


def regret(report):
    """The regrets of all rows in a few numbers, as a record has them; {} where no row has one."""
    found = regrets(report)
    if not found:
        return {}
    above = [
        {"case": case, "direction": direction, "regret": round(ratio, 3), "faster": engine} for case, direction, ratio, engine in found if ratio > MAX_REGRET
    ]
    worst, median = max(ratio for _, _, ratio, _ in found), statistics.median(ratio for _, _, ratio, _ in found)
    return {"rows": len(found), "worst": round(worst, 3), "median": round(median, 3), "above": above}


def is_peer(name):
    """Whether its time is of the attention alone: not scoremod's, and without the making of a block mask."""
    return not name.startswith("scoremod") and not name.endswith(MASK_IN_CALL)


def against_peers(report):
    """[(case, direction, the best peer's time by ours, the peer)], the worst first."""
    found = []
    for (case, direction), times in times_of(report).items():
        peers = {name: ms for name, ms in times.items() if is_peer(name)}
        if "scoremod" in times and peers:
            best = min(peers, key=peers.get)
            found.append((case, direction, peers[best] / times["scoremod"], best))
    return sorted(found, key=lambda each: each[2])


DIRECTIONS = ("forward", "backward")
# Name in a record -> in tables.
SHORT = {"torch_sdpa_cudnn": "SDPA cuDNN", "torch_sdpa": "SDPA FA2", "flex_triton": "Triton", "flex_flash": "FLASH"}
SHORT |= {"fa4": "FA4", "fa3": "FA3", "cudnn": "cuDNN"}
SCORES = ("soft_cap", "alibi", "relative", "t5", "bias")
SHAPES = {
    **{name: f"length {name}, no mask and masks" for name in ("1k", "2k", "8k", "16k")},
    **{name: f"head dim {name[1:].replace('_', ' / ')}" for name in ("d64", "d96", "d192_128", "d256")},
    **{name: f"{heads} query heads, 8 KV heads" for name, heads in (("gqa_32_8", 32), ("gqa_64_8", 64))},
    "f16": "float16",
}


def kind_of(report, case):
    """The group that a case is summed up in: its sizes, or what it does at the default ones. Records of earlier commits have the default sizes alone."""
    described = report.get("cases", {}).get(case, {"shape": "", "modifier": case})
    if described["shape"] in SHAPES:
        return SHAPES[described["shape"]]
    modifier = described["modifier"]
    if modifier in ("full", "causal"):
        return "no mask, causal"
    for kind in ("decode", "varlen", "deterministic"):
        if kind in modifier:
            return kind
    return "score functions" if modifier.startswith(SCORES) else "masks"


def ratio_of(ratio, peer):
    return f"{ratio:.2f} {SHORT.get(peer, peer)}"


def table(report):
    """docs/internals/peers.md's table, lines of Markdown: each case's times with scoremod, ms, and the best peer's by it. `-` where none runs it."""
    found = times_of(report)
    best = {(case, direction): ratio_of(ratio, peer) for case, direction, ratio, peer in against_peers(report)}
    lines = ["| case | forward ms | best peer's by it | backward ms | best peer's by it |", "|---|---|---|---|---|"]
    for case in dict.fromkeys(case for case, _ in found):
        cells = []
        for at in ((case, direction) for direction in DIRECTIONS):
            ours = found.get(at, {}).get("scoremod")
            cells += ["-" if ours is None else f"{ours:.3f}", best.get(at, "-")]
        lines.append(f"| `{case}` | {' | '.join(cells)} |")
    return lines


def summary(report):
    """docs/performance.md's table, lines of Markdown: for each kind of case the geometric mean of the best peers' times by scoremod's, and the least."""
    groups = {}
    for case, direction, ratio, peer in against_peers(report):
        groups.setdefault(kind_of(report, case), {}).setdefault(direction, []).append((ratio, case, direction, peer))
    order = ("no mask, causal", "masks", "score functions", *SHAPES.values(), "varlen", "deterministic", "decode")
    lines = [f"Measured on {report['machine'].split(',')[0]}, commit {report['commit'][:7]}:", ""]
    lines += ["| cases | forward | backward | least of them |", "|---|---|---|---|"]
    for kind in (kind for kind in order if kind in groups):
        means = [f"{statistics.geometric_mean(ratio for ratio, *_ in rows):.2f}" if rows else "-" for rows in map(groups[kind].get, DIRECTIONS)]
        ratio, case, direction, peer = min(row for rows in groups[kind].values() for row in rows)
        lines.append(f"| {kind} | {' | '.join(means)} | {ratio_of(ratio, peer)}, `{case}` {direction} |")
    return lines


def masks_in_call(report):
    """Lines of Markdown: the forward of cases whose block masks peers make in each call, as packed documents need them."""
    lines = ["| block masks made in each call | scoremod ms | peer | its ms | by scoremod's |", "|---|---|---|---|---|"]
    for (case, _), times in times_of(report).items():
        peers = {name: ms for name, ms in times.items() if name.endswith(MASK_IN_CALL)}
        if "scoremod" in times and peers:
            best = min(peers, key=peers.get)
            shown = SHORT.get(best.removesuffix(MASK_IN_CALL), best)
            lines.append(f"| `{case}` | {times['scoremod']:.3f} | {shown} | {peers[best]:.3f} | {peers[best] / times['scoremod']:.2f} |")
    return lines if len(lines) > 2 else []


MOST_SLOWER = 12


def slower(report):
    """Lines of Markdown: all cases in one number, the planner's regret, and the cases where a peer is faster, the worst first."""
    ratios, found = against_peers(report), regret(report)
    lines = []
    if ratios:
        mean = statistics.geometric_mean(ratio for _, _, ratio, _ in ratios)
        lines.append(f"The best peer of a case takes {mean:.2f} times scoremod's time in the geometric mean of {len(ratios)} cases and directions.")
    if found:
        lines.append(f"What the planner chose takes {found['median']:.2f} of the fastest engine's time in the median, and {found['worst']:.2f} at most.")
        above = "".join(f" `{each['case']}` {each['direction']}: {each['regret']:.2f}." for each in found["above"][:MOST_SLOWER])
        lines.append(f"It is above {MAX_REGRET} in {len(found['above'])} of {found['rows']}.{above}")
    behind = [each for each in ratios if round(each[2], 2) < 1]
    if behind:
        header = "| a peer is faster | | peer | its time by scoremod's |"
        lines += ["", f"A peer is faster in {len(behind)}; these are the first:", "", header, "|---|---|---|---|"]
    lines += [f"| `{case}` | {direction} | {SHORT.get(peer, peer)} | {ratio:.2f} |" for case, direction, ratio, peer in behind[:MOST_SLOWER]]
    in_call = masks_in_call(report)
    return [*lines, "", *in_call] if in_call else lines


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        report = json.load(file)
    print("\n".join([*slower(report), "", *summary(report)]))
    print("\nregret, all rows:", *(f"{case} {direction} {ratio:.3f} {engine}" for case, direction, ratio, engine in regrets(report)), sep="\n")


if __name__ == "__main__":
    main()
