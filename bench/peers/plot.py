#!/usr/bin/env python3
"""Draws what measure.py wrote: a bar for each implementation that runs a case, forward and backward beside each other.

usage: plot.py RESULTS.json OUTPUT.png

Needs matplotlib, which ./dev installs into .venv.
"""

import json
import sys

# Colours that people who don't tell red from green keep apart (Okabe and Ito 2008).
SHOWN = {
    "scoremod": ("scoremod", "#0072b2"),
    "flex_triton": ("FlexAttention", "#e69f00"),
    "flex_flash": ("FlexAttention FLASH", "#f0e442"),
    "fa4": ("FlashAttention-4", "#009e73"),
    "fa3": ("FlashAttention-3", "#56b4e9"),
    "cudnn": ("cuDNN by hand", "#d55e00"),
    "torch_sdpa_cudnn": ("cuDNN (PyTorch)", "#999999"),
    "torch_sdpa": ("FlashAttention-2 (PyTorch)", "#cccccc"),
}
# Longer bars end here and say how long they are.
MAX_OVER_OURS = 4


def rows_of(report, direction):
    """case -> implementation -> milliseconds, cases in the report's order."""
    found = {}
    for row in report["results"]:
        if row["direction"] == direction and "ms" in row and row["implementation"] in SHOWN:
            found.setdefault(row["case"], {})[row["implementation"]] = row["ms"]
    return {case: times for case, times in found.items() if "scoremod" in times}


def draw_direction(axes, rows, direction):
    height = 0.8 / len(SHOWN)
    for place, times in enumerate(rows.values()):
        for number, (name, (_, colour)) in enumerate(SHOWN.items()):
            if name not in times:
                continue
            ratio = times[name] / times["scoremod"]
            y = place + (number - len(SHOWN) / 2) * height
            axes.barh(y, min(ratio, MAX_OVER_OURS), height, color=colour)
            text = f" {times[name]:.3g} ms" + (f", {ratio:.0f} times" if ratio > MAX_OVER_OURS else "")
            axes.text(min(ratio, MAX_OVER_OURS), y, text, va="center", fontsize=4)
    axes.set_yticks(range(len(rows)), [case.replace("_", " ") for case in rows], fontsize=7)
    axes.set_ylim(len(rows) - 0.3, -0.9)
    axes.set_xlim(0, MAX_OVER_OURS * 1.15)
    axes.axvline(1, color="black", linewidth=0.6)
    axes.set_xlabel("time / scoremod's time")
    axes.set_title(direction, fontsize=9)


def draw(report, picture):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    by_direction = {direction: rows_of(report, direction) for direction in ("forward", "backward")}
    count = max(map(len, by_direction.values()))
    figure, columns = plt.subplots(1, 2, figsize=(11, 0.42 * count + 1.6))
    for axes, (direction, rows) in zip(columns, by_direction.items()):
        draw_direction(axes, rows, direction)
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for _, colour in SHOWN.values()]
    figure.legend(handles, [label for label, _ in SHOWN.values()], loc="lower center", ncol=len(SHOWN), fontsize=7, frameon=False)
    shape = report["shape"]
    figure.suptitle(f"{report['machine']}, {report['commit']}: batch {shape['batch']}, {shape['heads']} heads, {shape['seq']} long, head dim {shape['dim']}, "
                    f"{shape['dtype']}, unless a name says otherwise", fontsize=8)  # fmt: skip
    # Room for the legend and the title, however many cases there are.
    figure.tight_layout(rect=(0, 0.4 / figure.get_figheight(), 1, 1 - 0.25 / figure.get_figheight()))
    figure.savefig(picture, dpi=170 if count <= 40 else 100)


def main(arguments):
    if len(arguments) != 2:
        sys.exit(__doc__)
    with open(arguments[0], encoding="utf-8") as file:
        draw(json.load(file), arguments[1])


if __name__ == "__main__":
    main(sys.argv[1:])
