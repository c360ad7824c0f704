"""Draws README's picture: how many times as fast as PyTorch's FlexAttention each implementation is, of some of the cases that measure.py timed.

show_records.py draws the committed one.
"""

CASES = {
    "full": "no modifier",
    "causal": "causal",
    "window_512": "causal window of 512",
    "soft_cap": "soft cap",
    "documents": "packed documents",
    "neighbourhood_2d": "2-d neighbourhood",
    "dilated_2": "every second key",
    "alibi_causal_learned": "ALiBi, learned slopes, causal",
    "relative_table_learned": "learned table of distances",
}
BASE = "flex_triton"
# Colours that people who don't tell red from green keep apart (Okabe and Ito 2008).
SHOWN = {
    "scoremod": ("scoremod", "#0072b2"),
    BASE: ("FlexAttention (Triton)", "#e69f00"),
    "fa4": ("FlashAttention-4", "#009e73"),
    "fa3": ("FlashAttention-3", "#56b4e9"),
    "cudnn": ("cuDNN by hand", "#d55e00"),
    "torch_sdpa_cudnn": ("PyTorch's scaled_dot_product_attention", "#999999"),
}
# Bars end here; what is beyond is written.
MOST = 4.0


def numbers(record):
    """direction -> case -> implementation -> ms."""
    directions = {"forward": {}, "backward": {}}
    for row in record["results"]:
        if "ms" in row and row["implementation"] in SHOWN:
            directions[row["direction"]].setdefault(row["case"], {})[row["implementation"]] = row["ms"]
    return {direction: {case: cases[case] for case in CASES if "scoremod" in cases.get(case, {})} for direction, cases in directions.items()}


def source(record):
    shape = record["shape"]
    sizes = f"batch {shape['batch']}, {shape['heads']} heads, length {shape['seq']}, head dim {shape['dim']}, {shape['dtype'].removeprefix('torch.')}"
    return f"{record['machine']}, commit {record['commit']}, PyTorch {record['versions']['torch']}; {sizes}"


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
            axes.text(min(speed, MOST), at, f" {times[name]:.3g} ms{beyond}", va="center", fontsize=6)
        elif name == BASE:
            axes.text(0.03, at, "refused", va="center", fontsize=6, color="#808080")


def draw(record, picture):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = numbers(record)
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
    figure.text(0.01, 0.01, source(record), fontsize=6, color="#606060")
    figure.tight_layout(rect=(0, 0.03, 1, 0.93))
    figure.savefig(picture, dpi=130)
