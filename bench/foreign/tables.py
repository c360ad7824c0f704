"""The tables of docs/internals/foreign_tests.md of what the foreign suites came to (record.py)."""

import statistics
from collections import defaultdict

# Suite -> where its cases come from.
SOURCES = {
    "ONNX Attention": "data of the wheel onnx {onnx}",
    "ONNX FlexAttention": "data of the wheel onnx {onnx}",
    "FlashAttention-4 score_mod": "written anew",
    "FlashAttention-4 mask_mod": "written anew",
    "attention-gym score_mod": "written anew",
    "attention-gym mask_mod": "written anew",
    "PyTorch FlexAttention": "torch {torch} itself is the oracle",
    "transformers": "models of transformers {transformers}",
    "TransformerEngine score_mod": "written anew",
    "TransformerEngine fused_attn": "drawn anew in each run",
    "cuDNN frontend's random SDPA": "drawn anew in each run",
    "CUDA.jl attention": "written anew",
}


def of_suites(report):
    found = defaultdict(list)
    for row in report["results"]:
        found[row["suite"]].append(row)
    missing = set(found) ^ set(SOURCES)
    if missing:
        raise ValueError(f"foreign suites without a source or without results: {sorted(missing)}")
    return {suite: found[suite] for suite in SOURCES}


def suites(report):
    """A row for each suite: its cases, its seed, and how many results are right or refused. Errors are divided by those of the framework or the data."""
    lines = ["| suite | cases | from | seed | right | refused | median error | largest error |", "| --- " * 8 + "|"]
    for suite, rows in of_suites(report).items():
        ratios = [row["ratio"] for row in rows if "ratio" in row]
        cases, source = len({row["case"] for row in rows}), SOURCES[suite].format(**report["versions"])
        seeds = ", ".join(sorted({str(report["runs"][row["file"]]["seed"]) for row in rows}))
        counts = f"{len(ratios)} | {len(rows) - len(ratios)} | {statistics.median(ratios):.2g} | {max(ratios):.2g}"
        lines.append(f"| {suite} | {cases} | {source} | {seeds} | {counts} |")
    return lines


def differences(report):
    """Every refused case, with how it is called and the reason."""
    refused = [row for row in report["results"] if "refused" in row]
    lines = ["| suite | case | by | refused for |", "| --- | --- | --- | --- |"]
    lines += [f"| {row['suite']} | {row['case']} | {row['way']} | {row['refused']} |" for row in refused]
    return lines
