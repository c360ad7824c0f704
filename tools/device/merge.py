"""Puts what a run on a device found into the record of it: reports of check suites, patterns of cuDNN, cells of options.

usage: merge.py checks REPORT PART... [--parts COUNT] [--short]
       merge.py patterns TABLE.json NEW.json
       merge.py options RECORD.json CELLS.jsonl MACHINE COMMIT

checks: makes one report (docs/reference/check_suite.md) of those of the processes that shared a check suite, and prints what matters of it. COUNT is how many
    parts there should be; the report has `parts`, such as "60 of 64", where some are missing; with --short it has its summary, and of the
    results those that are not right, as bench/results keeps it. Exits 1 when a result is wrong or an error, or when
    nothing was right.
patterns: sums up NEW, a run of the pattern explorer, to a row for each decision, and puts these in the place of TABLE's rows of the same patterns; the
    order is TABLE's, with new patterns at the end. `added` of the table names the patterns, and what they were found by. A TABLE that does not exist
    is made.
options: puts the cells of a run of tools/device/options.sh into the record of all, in place of older ones.
"""

import argparse
import json
import re
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "cmake"))
from pattern_tables import row_class_of, worse

VERDICTS = ("right", "wrong", "refused", "error")


def merge_refusals(summaries):
    """Reasons that differ in numbers only are one, as they are within a part."""
    merged = {}
    for entry in (entry for summary in summaries for entry in summary["refused_by_reason"]):
        first = merged.setdefault(re.sub(r"\d+", "#", entry["reason"]), {**entry, "count": 0})
        first["count"] += entry["count"]
    return sorted(merged.values(), key=lambda entry: -entry["count"])


def summarize(results, summaries):
    verdicts = Counter(result["verdict"] for result in results)
    outputs = [output for result in results for output in result["outputs"].values()]
    ratios = sorted(x for output in outputs if (x := output["ratio_to_plain_attention"]) is not None)
    return {
        **{verdict: verdicts[verdict] for verdict in VERDICTS},
        "seconds": max(summary["seconds"] for summary in summaries),
        "plain_attention": {
            "outputs": len(ratios),
            "beyond_twice_and_band": sum(summary["plain_attention"]["beyond_twice_and_band"] for summary in summaries),
            "median_ratio": ratios[len(ratios) // 2] if ratios else 0,
            "largest_ratio": ratios[-1] if ratios else 0,
        },
        "refused_by_reason": merge_refusals(summaries),
    }


def write_report(path, head, summary, results):
    text = json.dumps({**head, "summary": summary}, indent=2)[:-2]
    with open(path, "w", encoding="utf-8") as report:
        report.write(text + ',\n  "results": [\n')
        report.write(",\n".join(json.dumps(result) for result in results))
        report.write("\n  ]\n}\n")


def print_what_matters(summary, results):
    print(json.dumps({key: value for key, value in summary.items() if key != "refused_by_reason"}))
    for entry in summary["refused_by_reason"][:25]:
        print(f"refused {entry['count']}: {entry['reason'][:400]} ({entry['example']})")
    for result in results:
        if result["verdict"] in ("wrong", "error"):
            print(result["verdict"], result["problem"], result["direction"], result["sizes"], result["reasons"][:2])
            print("   ", result["program"].replace("\n", "; ")[:300])


def not_right(results):
    """A summary cannot say these; the report's seed and a problem's name make one again."""
    kept = ("problem", "direction", "verdict", "output", "error", "tolerance", "sizes", "reasons")
    return [{name: result[name] for name in kept if result[name] not in (None, [])} for result in results if result["verdict"] != "right"]


def merge_checks(report, parts, count, short):
    parts = [json.loads(Path(path).read_text(encoding="utf-8")) for path in parts]
    results = sorted((result for part in parts for result in part["results"]), key=lambda result: result["problem"])
    summary = summarize(results, [part["summary"] for part in parts])
    head = {key: parts[0][key] for key in ("machine", "versions", "commit", "backend", "seed")}
    if count not in (None, len(parts)):
        head["parts"] = f"{len(parts)} of {count}"
    write_report(report, head, summary, not_right(results) if short else results)
    print_what_matters(summary, results)
    return 1 if summary["wrong"] + summary["error"] > 0 or summary["right"] == 0 else 0


def decisions_of(rows):
    """A row for each pattern, direction and class of rows; a time stays with the program that was timed. `cases` counts what the explorer's rows found."""
    found = {}
    for row in rows:
        key = {"pattern": row["pattern"], "direction": row["direction"], "setting": row_class_of(row)}
        if row["ms"]:
            key["program"] = row["program"]
        key |= {"architecture": row["architecture"], "cudnn": row["cudnn"]}
        decision = found.setdefault(tuple(key.items()), {**key, "verdict": row["verdict"], "ms": row["ms"], "cases": Counter()})
        decision["verdict"] = worse(decision["verdict"], row["verdict"])
        decision["ms"] = max(decision["ms"] or 0, row["ms"] or 0) or None
        decision["cases"].update(row.get("cases") or {row["verdict"]: 1})
    return list(found.values())


def merged_rows(old, new):
    """The rows of `old`, with those of `new` where the first of the same pattern was, or at the end."""
    by_pattern = {}
    for row in new:
        by_pattern.setdefault(row["pattern"], []).append(row)
    replaced = set(by_pattern)
    rows = []
    for row in old:
        if row["pattern"] in replaced:
            rows += by_pattern.pop(row["pattern"], [])
        else:
            rows.append(row)
    return rows + [row for left in by_pattern.values() for row in left]


def merge_patterns(table_path, new_path):
    path = Path(table_path)
    new = json.loads(Path(new_path).read_text(encoding="utf-8"))
    rows = decisions_of(new["results"])
    head = {key: value for key, value in new.items() if key != "results"}
    if path.exists():
        table = json.loads(path.read_text(encoding="utf-8"))
        patterns = list(dict.fromkeys(row["pattern"] for row in new["results"]))
        added = [entry | {"patterns": [pattern for pattern in entry["patterns"] if pattern not in patterns]} for entry in table.get("added", [])]
        added.append({"commit": new["commit"], "machine": new["machine"], "patterns": patterns})
        head = {key: value for key, value in table.items() if key not in ("results", "added")}
        head["added"] = [entry for entry in added if entry["patterns"]]
        rows = merged_rows(decisions_of(table["results"]), rows)
    lines = ",\n".join(json.dumps(row, separators=(",", ":"), ensure_ascii=False) for row in rows)
    path.write_text(json.dumps(head, ensure_ascii=False)[:-1] + ',\n"results": [\n' + lines + "\n]}\n", encoding="utf-8")
    return 0


def merged_cells(old, new, machine, commit):
    """The record's cells, one for each backend, option and modifier, in their order."""
    place = lambda cell: (cell["backend"], cell["option"], cell["modifier"])  # noqa: E731
    cells = {place(cell): cell for cell in old}
    cells.update((place(cell), {**cell, "machine": machine, "commit": commit}) for cell in new)
    return [cells[key] for key in sorted(cells)]


def merge_options(record, lines, machine, commit):
    path = Path(record)
    old = json.loads(path.read_text(encoding="utf-8"))["cells"] if path.exists() else []
    new = [json.loads(line) for line in Path(lines).read_text(encoding="utf-8").splitlines()]
    cells = merged_cells(old, new, machine, commit)
    path.write_text('{"cells": [\n' + ",\n".join(json.dumps(cell) for cell in cells) + "\n]}\n", encoding="utf-8")
    kind = lambda cell: cell["cell"] if cell["cell"] in ("wrong", "error", "nothing") else "refused" if cell["cell"].startswith("`") else "right"  # noqa: E731
    print(f"{len(new)} cells run, {len(cells)} in the record:", dict(Counter(map(kind, new))))
    return 0


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ", 1)[1].split("\n\n", 1)[0])
    records = parser.add_subparsers(dest="record", required=True)
    checks = records.add_parser("checks")
    checks.add_argument("report")
    checks.add_argument("part", nargs="+")
    checks.add_argument("--parts", type=int)
    checks.add_argument("--short", action="store_true")
    for name, arguments in (("patterns", ("table", "new")), ("options", ("all", "cells", "machine", "commit"))):
        of_record = records.add_parser(name)
        for argument in arguments:
            of_record.add_argument(argument)
    given = parser.parse_args()
    if given.record == "checks":
        return merge_checks(given.report, given.part, given.parts, given.short)
    if given.record == "patterns":
        return merge_patterns(given.table, given.new)
    return merge_options(given.all, given.cells, given.machine, given.commit)


if __name__ == "__main__":
    sys.exit(main())
