"""Makes one report of those of the processes that shared a check suite, and prints what matters of it.

usage: merge_check_reports.py REPORT PART...

Exits 1 when a result is wrong or an error, or when nothing was right.
"""

import json
import statistics
import sys
from collections import Counter


def summarize(results, seconds):
    verdicts = Counter(result["verdict"] for result in results)
    outputs = [output for result in results for output in result["outputs"].values()]
    ratios = [output["ratio_to_plain_attention"] for output in outputs if output["ratio_to_plain_attention"] is not None]
    reasons = {}
    for result in results:
        for reason in result["reasons"] if result["verdict"] == "refused" else []:
            entry = reasons.setdefault(reason, {"count": 0, "reason": reason, "example": result["problem"]})
            entry["count"] += 1
    return {
        **{verdict: verdicts[verdict] for verdict in ("right", "wrong", "refused", "error")},
        "seconds": seconds,
        "plain_attention": {
            "outputs": len(ratios),
            "median_ratio": round(statistics.median(ratios), 4) if ratios else None,
            "above_two": sum(ratio > 2 for ratio in ratios),
            "largest_ratio": max(ratios, default=None),
        },
        "refused_by_reason": sorted(reasons.values(), key=lambda entry: -entry["count"]),
    }


def main(report_path, part_paths):
    parts = [json.load(open(path)) for path in part_paths]
    results = sorted((result for part in parts for result in part["results"]), key=lambda result: result["problem"])
    head = {key: parts[0][key] for key in ("machine", "versions", "commit", "backend", "seed")}
    summary = summarize(results, max(part["summary"]["seconds"] for part in parts))
    text = json.dumps({**head, "summary": summary}, indent=2)[:-2]
    with open(report_path, "w") as report:
        report.write(text + ',\n  "results": [\n')
        report.write(",\n".join(json.dumps(result) for result in results))
        report.write("\n  ]\n}\n")

    print(json.dumps({key: value for key, value in summary.items() if key != "refused_by_reason"}))
    for entry in summary["refused_by_reason"][:25]:
        print(f"refused {entry['count']}: {entry['reason'][:400]} ({entry['example']})")
    for result in results:
        if result["verdict"] in ("wrong", "error"):
            print(result["verdict"], result["problem"], result["direction"], result["sizes"], result["reasons"][:2])
            print("   ", result["program"].replace("\n", "; ")[:300])
    return 1 if summary["wrong"] + summary["error"] > 0 or summary["right"] == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
