#!/usr/bin/env python3
"""Draws what a benchmark wrote: each case's time beside its reference's, the ratio of both, and on a GPU what a call costs the host.

usage: plot.py RESULTS.json OUTPUT.png

Needs matplotlib, which ./dev installs into .venv.
"""

import json
import sys

OWN, OTHER, LIMIT = "#1f6f8b", "#c8c8c8", "#b03a2e"
# The performance targets on a GPU: docs/internals/overhead.md.
MAX_TIME_OVER_REFERENCE = 1.03
MAX_HOST_TIME_OVER_REFERENCE = 1.2


def value(row, key):
    return row[key] if row.get(key) is not None else float("nan")


def host_ratio(row):
    return value(row, "host_us") / value(row, "reference_host_us")


def draw_pairs(axes, rows, own, other, unit):
    places = range(len(rows))
    axes.barh([place - 0.2 for place in places], [value(row, own) for row in rows], 0.4, color=OWN, label="scoremod")
    axes.barh([place + 0.2 for place in places], [value(row, other) for row in rows], 0.4, color=OTHER, label="reference")
    axes.set_xlabel(unit)
    axes.legend(loc="lower right", fontsize=7, frameon=False)


def draw_ratios(axes, ratios, limit, label):
    axes.barh(range(len(ratios)), ratios, 0.6, color=[LIMIT if limit and ratio > limit else OWN for ratio in ratios])
    if limit:
        axes.axvline(limit, color=LIMIT, linewidth=0.8, linestyle="--")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel(label)


def panels_of(report, rows):
    """Functions that draw a panel of these rows each."""
    on_device = report["machine"].get("device") is not None
    time_limit = MAX_TIME_OVER_REFERENCE if on_device else None
    panels = [
        lambda axes: draw_pairs(axes, rows, "ms", "reference_ms", "ms"),
        lambda axes: draw_ratios(axes, [value(row, "ratio") for row in rows], time_limit, "time / reference's time"),
    ]
    if on_device:
        panels.append(lambda axes: draw_ratios(axes, [host_ratio(row) for row in rows], MAX_HOST_TIME_OVER_REFERENCE, "host time of a call / reference's"))
    return panels


def title_of(report):
    machine = report["machine"]
    versions = report["versions"]
    name = machine.get("device") or f"{machine['processor']}, {machine['cores']} cores"
    library = f"cuDNN {versions['cudnn']}" if machine.get("device") else versions.get("openblas", "")
    return f"{name}, {library}, commit {report['commit']}"


def draw(report, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    directions = [
        direction for direction in ("forward", "backward") if any(row["direction"] == direction and row["ms"] is not None for row in report["results"])
    ]
    rows = {direction: [row for row in report["results"] if row["direction"] == direction and row["ms"] is not None] for direction in directions}
    if not directions:
        sys.exit("there is no measured case to draw")
    columns = len(panels_of(report, []))
    height = 1.2 + sum(0.8 + 0.3 * len(rows[direction]) for direction in directions)
    figure, grid = plt.subplots(
        len(directions),
        columns,
        figsize=(4.2 * columns, height),
        sharey="row",
        squeeze=False,
        height_ratios=[len(rows[direction]) + 1 for direction in directions],
    )
    for line, direction in zip(grid, directions):
        for axes, panel in zip(line, panels_of(report, rows[direction])):
            panel(axes)
            axes.tick_params(labelsize=8)
            axes.spines[["top", "right"]].set_visible(False)
        line[0].set_yticks(range(len(rows[direction])), [row["case"] for row in rows[direction]])
        line[0].invert_yaxis()
        line[0].set_title(direction, loc="left", fontsize=10)
    figure.suptitle(title_of(report), fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main(arguments):
    if len(arguments) != 2:
        sys.exit(__doc__)
    with open(arguments[0], encoding="utf-8") as file:
        draw(json.load(file), arguments[1])


if __name__ == "__main__":
    main(sys.argv[1:])
