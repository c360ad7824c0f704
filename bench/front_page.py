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
DECODE_KEYS = (8192, 32768)


def _decode(keys):
    return {f"decode_{queries}_of_{keys}": f"{queries} {'query' if queries == 1 else 'queries'}" for queries in (1, 4, 16)}


# Rows of panels: title -> (direction, its cases).
PANELS = (
    {"forward": ("forward", CASES), "backward": ("backward", CASES)},
    {f"decode, {keys} keys": ("forward", _decode(keys)) for keys in DECODE_KEYS},
)
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
    """title of a panel -> label of a case -> implementation -> ms."""
    times = {}
    for row in record["results"]:
        if "ms" in row and row["implementation"] in SHOWN:
            times.setdefault((row["direction"], row["case"]), {})[row["implementation"]] = row["ms"]
    return {
        title: {label: times[direction, case] for case, label in cases.items() if "scoremod" in times.get((direction, case), {})}
        for row in PANELS
        for title, (direction, cases) in row.items()
    }


def source(record):
    shape = record["shape"]
    sizes = f"batch {shape['batch']}, {shape['heads']} heads, length {shape['seq']}, head dim {shape['dim']}, {shape['dtype'].removeprefix('torch.')}"
    decode = [record["cases"][case] for keys in DECODE_KEYS if (case := f"decode_1_of_{keys}") in record["cases"]]
    heads = "".join(f"\ndecode: batch {each['batch']} of {each['keys']} keys, {each['heads']} query and {each['kv_heads']} KV heads" for each in decode)
    return f"{record['machine']}, commit {record['commit']}, PyTorch {record['versions']['torch']}; {sizes}{heads}"


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


def draw_panel(axes, rows, labels, present):
    """A panel's cases, one below the other. labels: of the row of panels."""
    for place, label in enumerate(labels):
        if label in rows:
            draw_case(axes, place, rows[label], present)
    axes.axvline(1, color="black", linewidth=0.6)
    axes.set_xlim(0, MOST * 1.25)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.tick_params(labelsize=7)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def draw(record, picture):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = numbers(record)
    rows = [list(row) for row in PANELS if any(shown[title] for title in row)]
    labels = [list(dict.fromkeys(label for title in row for label in shown[title])) for row in rows]
    present = [name for name in SHOWN if any(name in times for cases in shown.values() for times in cases.values())]
    heights = [len(each) + 0.5 for each in labels]
    figure, panels = plt.subplot_mosaic(rows, figsize=(11, 1.6 + 0.58 * sum(heights)), height_ratios=heights)
    for row, names in zip(rows, labels):
        for title in row:
            draw_panel(panels[title], shown[title], names, present)
            panels[title].set_title(title, fontsize=9)
        for title in row[1:]:
            panels[title].set_yticklabels([])
    for title in rows[-1]:
        panels[title].set_xlabel("times as fast as FlexAttention", fontsize=8)
    handles = [plt.Rectangle((0, 0), 1, 1, color=SHOWN[name][1]) for name in present]
    figure.legend(handles, [SHOWN[name][0] for name in present], ncols=len(present), loc="upper center", fontsize=7, frameon=False)
    figure.text(0.01, 0.01, source(record), fontsize=6, color="#606060")
    figure.tight_layout(rect=(0, 0.04, 1, 0.96))
    figure.savefig(picture, dpi=130)
