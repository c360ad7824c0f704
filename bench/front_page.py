#!/usr/bin/env python3
"""Draws README's picture from the committed records: how many times as fast as PyTorch's FlexAttention each implementation is, case by case.

usage: front_page.py [--check] [--results FOLDER] [--picture FILE]

The record is bench/results/h200-peers.json (bench/peers/measure.py); where there is none yet, torch_h200.json (bench/torch/flex_attention.py). The picture
carries a digest of what it shows; --check draws nothing, and exits with 1 where the record says something else by now. Needs matplotlib, which ./dev
installs into .venv.
"""

import argparse
import hashlib
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Cases of either record, and what they are called.
CASES = {
    "full": "no modifier",
    "plain": "no modifier",
    "causal": "causal",
    "window_512": "causal window of 512",
    "sliding_window": "causal window of 512",
    "soft_cap": "soft cap",
    "documents": "packed documents",
    "neighbourhood_2d": "2-d neighbourhood",
    "dilated_2": "every second key",
    "alibi_causal_learned": "ALiBi, learned slopes, causal",
    "alibi_learned": "ALiBi, learned slopes, causal",
    "relative_table_learned": "learned table of distances",
    "documents_alibi_cap_learned": "documents + learned ALiBi + soft cap",
}
BASE = "flex_attention"
# An implementation's name in a record -> its key here.
KEYS = {"flex_triton": BASE, "torch_sdpa_cudnn": "sdpa"}
# Colours that people who don't tell red from green keep apart (Okabe and Ito 2008).
SHOWN = {
    "scoremod": ("scoremod", "#0072b2"),
    BASE: ("FlexAttention (Triton)", "#e69f00"),
    "fa4": ("FlashAttention-4", "#009e73"),
    "cudnn": ("cuDNN by hand", "#d55e00"),
    "sdpa": ("PyTorch's scaled_dot_product_attention", "#999999"),
}
# Bars end here; what is beyond is written.
MOST = 4.0
METADATA = "Numbers"


def of_peers(record):
    """direction -> case -> implementation -> ms, and where they are from."""
    directions = {"forward": {}, "backward": {}}
    for row in record["results"]:
        if "ms" in row:
            directions[row["direction"]].setdefault(row["case"], {})[row["implementation"]] = row["ms"]
    return directions, f"{record['machine']}, commit {record['commit']}, PyTorch {record['versions']['torch']}"


def of_torch(record):
    directions = {"forward": "forward_ms", "forward and backward": "with_gradients_ms"}
    found = {
        direction: {case: {name: each[way] for name, each in times.items() if way in each} for case, times in record["cases"].items()}
        for direction, way in directions.items()
    }
    return found, f"{record['device']}, commit {record['commit']}, PyTorch {record['torch']}"


def numbers(results):
    """(direction -> case -> implementation -> ms, as the picture shows them; its last line)."""
    peers, of_pytorch = results / "h200-peers.json", results / "torch_h200.json"
    record = json.loads((peers if peers.is_file() else of_pytorch).read_text(encoding="utf-8"))
    directions, source = (of_peers if peers.is_file() else of_torch)(record)
    shape = record["shape"]
    sizes = f"batch {shape['batch']}, {shape['heads']} heads, length {shape['seq']}, head dim {shape['dim']}, {shape['dtype'].removeprefix('torch.')}"
    shown = {}
    for direction, cases in directions.items():
        renamed = {case: {KEYS.get(name, name): float(f"{ms:.3g}") for name, ms in times.items()} for case, times in cases.items()}
        shown[direction] = {case: {name: ms for name, ms in renamed[case].items() if name in SHOWN} for case in CASES if "scoremod" in renamed.get(case, {})}
    return shown, f"{source}; {sizes}"


def digest(shown, source):
    return hashlib.sha256(json.dumps([shown, source], sort_keys=True).encode()).hexdigest()


def draw_case(axes, place, times, present):
    """One case's bars. Where FlexAttention refuses the case, it is said in its bar's place, and scoremod's time is 1."""
    height = 0.8 / len(present)
    base = times.get(BASE, times["scoremod"])
    for number, name in enumerate(present):
        at = place + (number - (len(present) - 1) / 2) * height
        if name in times:
            speed = base / times[name]
            axes.barh(at, min(speed, MOST), height, color=SHOWN[name][1])
            beyond = f", {speed:.0f} times as fast" if speed > MOST else ""
            axes.text(min(speed, MOST), at, f" {times[name]:g} ms{beyond}", va="center", fontsize=6)
        elif name == BASE:
            axes.text(0.03, at, "refused", va="center", fontsize=6, color="#808080")


def draw(shown, source, picture):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    cases = list(dict.fromkeys(case for rows in shown.values() for case in rows))
    present = [name for name in SHOWN if any(name in times for rows in shown.values() for times in rows.values())]
    figure, panels = plt.subplots(1, len(shown), figsize=(11, 1.2 + 0.6 * len(cases)), sharey=True)
    for axes, (direction, rows) in zip(panels, shown.items()):
        for place, case in enumerate(cases):
            if case in rows:
                draw_case(axes, place, rows[case], present)
        axes.axvline(1, color="black", linewidth=0.6)
        axes.set_xlim(0, MOST * 1.25)
        axes.set_xlabel("times as fast as FlexAttention", fontsize=8)
        axes.set_title(direction, fontsize=9)
        axes.tick_params(labelsize=7)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    panels[0].set_yticks(range(len(cases)), [CASES[case] for case in cases], fontsize=8)
    panels[0].set_ylim(len(cases) - 0.4, -0.6)
    handles = [plt.Rectangle((0, 0), 1, 1, color=SHOWN[name][1]) for name in present]
    figure.legend(handles, [SHOWN[name][0] for name in present], ncols=len(present), loc="upper center", fontsize=7, frameon=False)
    figure.text(0.01, 0.01, source, fontsize=6, color="#606060")
    figure.tight_layout(rect=(0, 0.03, 1, 0.93))
    figure.savefig(picture, dpi=130, metadata={METADATA: digest(shown, source)})


def drawn_digest(picture):
    from PIL import Image

    with Image.open(picture) as image:
        return image.text.get(METADATA)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--results", type=Path, default=ROOT / "bench" / "results")
    parser.add_argument("--picture", type=Path, default=ROOT / "docs" / "speed.png")
    options = parser.parse_args()
    shown, source = numbers(options.results)
    if not options.check:
        draw(shown, source, options.picture)
    elif not options.picture.is_file() or drawn_digest(options.picture) != digest(shown, source):
        sys.exit(f"{options.picture} shows other numbers than {options.results} has: run .venv/bin/python bench/front_page.py, and commit the picture")


if __name__ == "__main__":
    main()
