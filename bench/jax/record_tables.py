"""docs/reference/times.md's tables of what bench/jax recorded on GPUs. bench/show_records.py writes them."""

SPEED = ["plain", "causal", "sliding_window", "alibi", "soft_cap", "documents", "relative_table"]
IMPLEMENTATIONS = ["scoremod", "jax_cudnn", "dense"]
SHARDED = {"batch": "batch", "heads": "heads", "sequence_ring": "sequence, ring", "sequence_all_gather": "sequence, all-gather"}


def speed(report):
    """Lines of Markdown: milliseconds of each case. A field is empty where an implementation can't say the case."""
    times = {(row["case"], row["direction"], row["implementation"]): f"{row['ms']:.2f}" for row in report["results"]}
    lines = [
        "| | forward ms | `dot_product_attention` | dense | with gradients ms | `dot_product_attention` | dense |",
        "|---|---|---|---|---|---|---|",
    ]
    for case in SPEED:
        fields = [times.get((case, direction, name), "") for direction in ("forward", "forward_and_backward") for name in IMPLEMENTATIONS]
        lines.append(f"| {case.replace('_', ' ')} | {' | '.join(fields)} |")
    return lines


def sharding(report):
    lines = ["| sharded | 1 GPU, ms | 2 GPUs, ms | speedup |", "|---|---|---|---|"]
    rows = {(row["sharded"], row["devices"]): row for row in report["results"]}
    for name, label in SHARDED.items():
        two = rows[name, 2]
        lines.append(f"| {label} | {rows[name, 1]['ms']:.1f} | {two['ms']:.1f} | {two['speedup']:.2f} |")
    return lines
