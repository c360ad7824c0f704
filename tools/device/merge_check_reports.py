"""Makes one report (docs/reference/check_suite.md) of those of the processes that shared a check suite, and prints what matters of it.

usage: merge_check_reports.py REPORT PART... [--parts COUNT]

COUNT is how many parts there should be; the report has `parts`, such as "60 of 64", where some are missing.

Exits 1 when a result is wrong or an error, or when nothing was right.
"""

import argparse
import json
import re
import sys
from collections import Counter

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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("report")
    parser.add_argument("part", nargs="+")
    parser.add_argument("--parts", type=int)
    arguments = parser.parse_args()
    parts = []
    for path in arguments.part:
        with open(path, encoding="utf-8") as part:
            parts.append(json.load(part))
    results = sorted((result for part in parts for result in part["results"]), key=lambda result: result["problem"])
    summary = summarize(results, [part["summary"] for part in parts])
    head = {key: parts[0][key] for key in ("machine", "versions", "commit", "backend", "seed")}
    if arguments.parts not in (None, len(parts)):
        head["parts"] = f"{len(parts)} of {arguments.parts}"
    write_report(arguments.report, head, summary, results)
    print_what_matters(summary, results)
    return 1 if summary["wrong"] + summary["error"] > 0 or summary["right"] == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
