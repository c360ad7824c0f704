#!/usr/bin/env python3
"""Adds cuDNN by hand to measure.py's report: what tools/device/bench.sh timed in the same call, of the cases that both know by the same name.

usage: by_hand.py REPORT.json BENCH.json

A row's `ms` is scoremod's time on cuDNN in that report, scaled by the benchmark's ratio of the graph by hand (bench/cudnn_graph.cpp) to
scoremod. The benchmark's own times are `reference_ms` and `ours_ms`. They can't stand beside other libraries' times, because the benchmark
uses several sets of tensors in turn, so that no call finds its own in a cache.
"""

import json
import sys
from pathlib import Path

NAME, OURS = "cudnn", "scoremod_cudnn"


def with_cudnn(report, bench):
    """The report with those rows in place of what it had of them. Raises ValueError where the two are of other machines or commits."""
    for field in ("machine", "commit"):
        if report[field] != bench[field]:
            raise ValueError(f"expected reports of one run, found {field} '{report[field]}' and '{bench[field]}'")
    shape = report["shape"]
    ours = {(row["case"], row["direction"]): row["ms"] for row in report["results"] if row["implementation"] == OURS and "ms" in row}
    sizes = {"batch": shape["batch"], "heads": shape["heads"], "sequence": shape["seq"], "head_dim": shape["dim"]}
    added = []
    for row in bench["results"]:
        at = row["case"], row["direction"]
        if at in ours and row["reference_ms"] is not None and is_same_size(row, sizes):
            times = {"ms": round(ours[at] * row["reference_ms"] / row["ms"], 4), "reference_ms": row["reference_ms"], "ours_ms": row["ms"]}
            added.append({"case": row["case"], "direction": row["direction"], "implementation": NAME, **times})
    rows = [row for row in report["results"] if row["implementation"] != NAME]
    return {**report, "results": rows + added}


def is_same_size(row, sizes):
    """Whether a row has these sizes. Decode cases have sizes of their own, which their names tell."""
    return row["case"].startswith("decode") or all(row[name] == size for name, size in sizes.items())


def main():
    report, bench = (json.loads(Path(path).read_text(encoding="utf-8")) for path in sys.argv[1:3])
    try:
        report = with_cudnn(report, bench)
    except ValueError as error:
        sys.exit(str(error))
    Path(sys.argv[1]).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
