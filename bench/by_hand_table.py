"""docs/internals/overhead.md's table of what the benchmark recorded on a GPU: each case beside the graph by hand. show_records.py writes it."""

NOTES = {
    "full": "no modifier",
    "window_512": "causal, 512 keys",
    "prefix_1024": "prefix LM",
    "documents": "8 packed documents",
    "padding": "lengths 4096, 3500, 2600, 1200",
    "bias": "bf16 `[h, q_idx, kv_idx]`",
    "learned_bias": "the same, with its gradient",
    "learned_slopes": "ALiBi, causal, with the gradient of its slopes",
    "gqa_causal": "32 heads over 8, length 8192, batch 1",
    "gqa_soft_cap_causal": "the same",
    "short_causal": "batch 16, length 512, head dim 64, f16",
    "short_alibi_causal": "the same",
}


def by_case(report):
    """case -> direction -> row."""
    found = {}
    for row in report["results"]:
        found.setdefault(row["case"], {})[row["direction"]] = row
    return found


def number(row, key, digits):
    return "" if row is None or row.get(key) is None else f"{row[key]:.{digits}f}"


def table(report):
    """Lines of Markdown: milliseconds, their ratio to the graph by hand and TFLOP/s of each case. A field is empty where there is no such number."""
    lines = ["| case | | forward ms | by hand | backward ms | by hand | TFLOP/s |", "|---|---|---|---|---|---|---|"]
    for case, rows in by_case(report).items():
        directions = [rows.get(direction) for direction in ("forward", "backward")]
        times = [field for row in directions for field in (number(row, "ms", 3), number(row, "ratio", 3))]
        rates = " / ".join(number(row, "tflops", 0) for row in directions)
        lines.append(f"| `{case}` | {NOTES.get(case, '')} | {' | '.join(times)} | {rates} |")
    return lines
