#!/usr/bin/env python3
"""Adds cuDNN by hand to measure.py's report: what tools/device/bench.sh timed in the same call, of the cases that both know by the same name.

usage: by_hand.py REPORT.json BENCH.json
       by_hand.py --names REPORT.json      the cases that the benchmark has, and the report not yet with cuDNN by hand

A row's `ms` is scoremod's time on cuDNN in that report, scaled by the benchmark's ratio of the graph by hand (bench/cudnn_graph.cpp) to
scoremod. The benchmark's own times are `reference_ms` and `ours_ms`. They can't stand beside other libraries' times, because the benchmark
uses several sets of tensors in turn, so that no call finds its own in a cache.
"""

import json
import sys
from pathlib import Path

NAME, OURS = "cudnn", "scoremod_cudnn"


def sizes_of(report, case):
    """A case's sizes in the report, by the benchmark's names."""
    shape = report["cases"][case]
    return {"batch": shape["batch"], "heads": shape["heads"], "sequence": shape["queries"], "head_dim": shape["dim"]}


def with_cudnn(report, bench):
    """The report with those rows, in place of what it had of the same cases. Raises ValueError where the two are of other machines or commits."""
    for field in ("machine", "commit"):
        if report[field] != bench[field]:
            raise ValueError(f"expected reports of one run, found {field} '{report[field]}' and '{bench[field]}'")
    ours = {(row["case"], row["direction"]): row["ms"] for row in report["results"] if row["implementation"] == OURS and "ms" in row}
    added = {}
    for row in bench["results"]:
        at = row["case"], row["direction"]
        if at in ours and row["reference_ms"] is not None and all(row[name] == size for name, size in sizes_of(report, row["case"]).items()):
            times = {"ms": round(ours[at] * row["reference_ms"] / row["ms"], 4), "reference_ms": row["reference_ms"], "ours_ms": row["ms"]}
            added[at] = {"case": row["case"], "direction": row["direction"], "implementation": NAME, **times}
    rows = [row for row in report["results"] if row["implementation"] != NAME or (row["case"], row["direction"]) not in added]
    return {**report, "results": rows + list(added.values())}


def names(report):
    """The benchmark's cases that the report has without cuDNN by hand."""
    benchmark = json.loads((Path(__file__).resolve().parents[1] / "gpu_cases.json").read_text(encoding="utf-8"))
    has = {row["case"] for row in report["results"] if row["implementation"] == NAME}
    return [case["name"] for case in benchmark if case["name"] in report["cases"] and case["name"] not in has]


def main():
    if sys.argv[1] == "--names":
        return print(*names(json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))))
    report, bench = (json.loads(Path(path).read_text(encoding="utf-8")) for path in sys.argv[1:3])
    try:
        report = with_cudnn(report, bench)
    except ValueError as error:
        sys.exit(str(error))
    Path(sys.argv[1]).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
