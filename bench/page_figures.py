"""Figures that stand in sentences of the pages, each from a record in bench/results, and the rule that finds measured ones without a mark.

A mark is `<!--=RECORD.NAME-->FIGURE<!--=-->`, where RECORD is a file of bench/results without its ending, or one of OTHER_RECORDS. show_records.py
writes the figure.
"""

import functools
import json
import re
import statistics
from collections import Counter

MARK = re.compile(r"<!--=([^>]*?)-->(.*?)<!--=-->", re.DOTALL)
OPENING = re.compile(r"<!--=[^>]")


def rows(report, **wanted):
    return [row for row in report["results"] if all(row.get(key) == value for key, value in wanted.items())]


def row(report, **wanted):
    (found,) = rows(report, **wanted)
    return found


def time_of(digits=2, **wanted):
    return lambda report: f"{row(report, **wanted)['ms']:.{digits}f}"


def item(*path, form=""):
    """A figure: the value in the record at this path, in Python's format `form`."""

    def figure(report):
        for key in path:
            report = report[key]
        return format(report, form)

    return figure


def percent(part, digits):
    return f"{part * 100:.{digits}f} %"


def least_to_most(key, form):
    return lambda report: " to ".join(format(pick(each[key] for each in report["results"]), form) for pick in (min, max))


def above_sdpa(name):
    return lambda report: f"{report['known_sizes'][name] - report['known_sizes']['sdpa']:+.0f}"


def least_and_most(values, form):
    return " to ".join(format(pick(values), form) for pick in (min, max))


def extreme(key, form, pick=max):
    return lambda report: format(pick(value for each in report["results"] if (value := each.get(key)) is not None), form)


def host_ratios(report):
    return [each["host_us"] / each["reference_host_us"] for each in report["results"] if each.get("reference_host_us")]


def first_commit(report):
    """The commit of a record; of most rows, where they are of several calls."""
    return re.match(r"[0-9a-f]{7}", report["commit"]).group()


REFUSALS = {"options": ("dropout", "sink", "max_logit"), "one_row": ("seq_q is 1",), "trial": ("trial run",), "computed": ("computed beforehand",)}


def refused_for(kind):
    """How many results are refused for a reason of this kind, each counted under the first kind that its reasons name."""

    def first_kind(each):
        text = " ".join(each["reasons"])
        return next(kind for kind, words in REFUSALS.items() if any(word in text for word in words))

    return lambda report: str(Counter(map(first_kind, rows(report, verdict="refused")))[kind])


def check_suite():
    verdicts = {name: item("summary", name) for name in ("right", "wrong", "refused")}
    return {
        "commit": item("commit"),
        "results": lambda report: str(sum(report["summary"][name] for name in ("right", "wrong", "refused", "error"))),
        **verdicts,
    }


def float8_figure(case, *keys):
    """A figure of FP8 products at length 8192 and head dim 128."""

    def figure(report):
        found = row(report, case=case, dtype="float8_e4m3fn", length=8192, dim=128)
        for key in keys:
            found = found[key]
        return f"{found:.2f}" if keys[-1] in ("bf16", "fp8") and len(keys) == 1 else str(found)

    return figure


def sum_of(name):
    return lambda report: str(sum(row[name] for row in report))


def steady(report, case, other, direction="forward"):
    """How long a case of the CPU's benchmark takes by another one."""
    return f"{row(report, case=case, direction=direction)['ms'] / row(report, case=other, direction=direction)['ms']:.2f}"


def rate(direction):
    return lambda report: f"{1 / row(report, case='full', direction=direction)['ratio']:.2f}"


def part_of_ring(*parts):
    """A figure: the time of parts of two shards, forward and backward."""
    return lambda report: f"{max(each['forward_and_backward']['ms'] for each in report['parts'] if each['part'] in parts):.1f}"


def ring_kernels(report):
    """The time of the kernels of a ring of two shards. The slower device has its own part and one of the other's."""
    times = {each["part"]: each["forward_and_backward"]["ms"] for each in report["parts"]}
    return f"{times[0] + times[1]:.1f}"


def difference_of_losses(report):
    return f"{max(abs(a - b) for a, b in zip(report['losses']['scoremod'], report['losses']['dense'])):.1e}".replace("e-0", "e-")


def training_step(model):
    return {f"{model}_{name}": item("training_steps", model, name, "step_ms", form=".1f") for name in ("scoremod", "flex_attention", "sdpa", "eager")}


def causal_times(name):
    return {f"causal_{name}_{field}": item("cases", "causal", name, f"{field}_ms", form=".2f") for field in ("forward", "with_gradients")}


def pass_time(case, digits=1):
    return lambda report: f"{row(report, kind='time', case=case)['ms']:.{digits}f}"


def first_times(report, hopper):
    """Seconds of first uses, of those with a kernel of ours in some direction or of those with none."""
    chosen = [each["chosen"]["first"] for each in report["results"]]
    found = [each["seconds"] for each in chosen if ("kernels" in (each["backend"], each["backward_backend"])) == hopper]
    return f"{min(found):.2f} to {max(found):.2f}"


def verdicts_of_table(*others):
    def cases(*verdicts):
        return lambda report: str(sum(count for row in report["results"] for verdict, count in row["cases"].items() if not verdicts or verdict in verdicts))

    return {"cases": cases(), **{verdict: cases(verdict) for verdict in ("right", "wrong", "refused", "crashed", *others)}}


def case_ms(report, case, direction):
    return row(report, case=case, direction=direction)["ms"]


PATTERNS = "src/backend/cudnn/patterns/tables"
OTHER_RECORDS = {f"patterns_{version.replace('.', '_')}": f"{PATTERNS}/sm_90-{version}.json" for version in ("9.19.0", "9.27.0", "9.28.0")}
FIGURES = {
    **{record: verdicts_of_table() for record in OTHER_RECORDS},
    "patterns_9_19_0": verdicts_of_table("not_lowered"),
    "cudnn_check": {
        **check_suite(),
        **{f"refused_{kind}": refused_for(kind) for kind in REFUSALS},
        **{name: item("summary", "plain_attention", name) for name in ("beyond_twice_and_band", "median_ratio")},
    },
    "kernels_check": check_suite(),
    "float8_products": {
        "machine": lambda report: report["machine"].split(",")[0].removeprefix("NVIDIA ").split(" ")[0],
        "commit": item("commit"),
        **{f"{case}_{key}": float8_figure(case, key) for case in ("full", "causal", "soft_cap", "window") for key in ("bf16", "fp8", "tflops")},
        **{f"error_{key}": float8_figure("full", "errors", key) for key in ("bf16", "fp8", "rounded")},
    },
    "random_problems": {
        "seeds": lambda report: str(len(report)),
        **{name: sum_of(name) for name in ("problems", "right", "refused", "wrong", "error")},
    },
    "prediction": {
        "times": lambda report: str(len(report["results"])),
        "median_error": lambda report: percent(report["median_error"], 1),
        "slopes": lambda report: f"{row(report, case='learned_slopes', direction='backward')['ratio']:.1f}",
        "worst_other": lambda report: percent(max(abs(each["ratio"] - 1) for each in report["results"] if each["case"] != "learned_slopes"), 0),
    },
    "regret": {
        "rows": lambda report: str(report["rows"]),
        "above": lambda report: str(report["above_1.03"]),
        "worst": lambda report: f"{max(each['regret'] for each in report['results']):.2f}",
    },
    "h200": {
        "commit": first_commit,
        "repetitions": item("options", "repetitions"),
        "worst_ratio": extreme("ratio", ".3f"),
        "worst_ratio_case": lambda report: "`{case}` {direction}".format(
            **max((each for each in report["results"] if each.get("ratio")), key=lambda each: each["ratio"])
        ),
        "worst_host": lambda report: f"{max(host_ratios(report)):.2f}",
        "median_host": lambda report: f"{statistics.median(host_ratios(report)):.2f}",
        "worst_load": extreme("load_ms", ".1f"),
        "median_static": lambda report: f"{statistics.median(each['static_us'] for each in report['results']):.0f}",
        "longest_build": lambda report: f"{max(each['build_ms'] for each in report['results']) / 1e3:.1f}",
        "backward_of_slopes": lambda report: f"{case_ms(report, 'alibi_causal', 'backward'):.1f}",
        "gradient_of_slopes": lambda report: f"{case_ms(report, 'learned_slopes', 'backward') - case_ms(report, 'alibi_causal', 'backward'):.1f}",
        "gradient_of_bias": lambda report: f"{case_ms(report, 'learned_bias', 'backward') - case_ms(report, 'bias', 'backward'):.1f}",
        "filled_store_builds": item("plans", "filled_store_builds"),
    },
    "host_times": {
        "machine": item("machine"),
        "commit": first_commit,
        "sdpa": item("known_sizes", "sdpa", form=".0f"),
        **{name.replace(" ", "_"): above_sdpa(name) for name in ("plain", "fresh closure", "attribute", "lengths", "sink", "pages", "ragged")},
        "new_size": lambda report: least_and_most(
            [each["new"] - each["known"] for name, each in report["new_sizes"].items() if name not in ("sdpa", "ragged", "mask by name")], ".0f"
        ),
        "new_ragged_size": lambda report: f"{report['new_sizes']['ragged']['new'] - report['new_sizes']['ragged']['known']:.0f}",
        "decode_known": item("c_interface", "decode", "known", form=".1f"),
        "decode_new": item("c_interface", "decode", "new", form=".0f"),
        "prefill_new": item("c_interface", "causal prefill", "new", form=".0f"),
        "generation": lambda report: least_and_most([each["ratio"] for each in report["generation"]], ".2f"),
        "compiles": lambda report: str(max(each["compiles"] for each in report["generation"])),
    },
    "first_use": {
        "modifiers": lambda report: str(len(report["results"])),
        "median": item("summary", "chosen", "median_s", form=".2f"),
        "worst": item("summary", "chosen", "worst_s", form=".2f"),
        "again": item("summary", "chosen", "median_again_s", form=".2f"),
        "cores": item("cores"),
        "cudnn_alone": lambda report: first_times(report, hopper=False),
        "own_kernels": lambda report: first_times(report, hopper=True),
    },
    "cpu": {
        "forward_rate": rate("forward"),
        "backward_rate": rate("backward"),
        "forward_ms": lambda report: f"{row(report, case='full', direction='forward')['ms']:.0f}",
        "openblas_ms": lambda report: f"{row(report, case='full', direction='forward')['reference_ms']:.0f}",
        "causal": lambda report: steady(report, "causal", "full"),
        "soft_cap": lambda report: steady(report, "soft_cap", "full"),
        "added_mib": lambda report: f"{report['memory']['added_bytes'] / 2**20:.1f}",
    },
    "stored_plans_h200": {
        "plans": lambda report: str(len(report["results"])),
        "load": least_to_most("load_ms", ".0f"),
        "build": least_to_most("build_ms", ".0f"),
        "ratio": least_to_most("ratio", ".3f"),
        "largest_difference": lambda report: percent(max(abs(each["ratio"] - 1) for each in report["results"]), 1),
        "same_bits": lambda report: str(sum(each["outputs_equal"] for each in report["results"])),
        "first_load": extreme("first_load_ms", ".0f"),
    },
    "operand_gradients": {
        "slopes": pass_time("slopes [h]"),
        "slopes_causal": pass_time("slopes [h], causal"),
        "bias": pass_time("bias [h, q, kv]"),
        "table": pass_time("relative table [h, 8191]"),
        "workspace_mib": lambda report: " to ".join(str(pick(each["workspace_mib"] for each in rows(report, kind="time"))) for pick in (min, max)),
    },
    "char_model_cpu": {"steps": item("options", "steps"), "difference": difference_of_losses},
    "char_model_h200": {
        "commit": item("commit"),
        "steps": item("options", "steps"),
        **{f"{name}_ms": (lambda report, name=name: f"{report['seconds_per_step'][name] * 1e3:.1f}") for name in ("scoremod", "dense")},
        "loss": lambda report: f"{report['losses']['scoremod'][-1]:.3f}",
        "dense_loss": lambda report: f"{report['losses']['dense'][-1]:.3f}",
    },
    "jax_h200": {
        "commit": item("commit"),
        **{f"call_{name}": (lambda report, name=name: f"{report['call_overhead'][name]['ms'] * 1e3:.0f}") for name in ("scoremod", "jax_cudnn", "addition")},
    },
    "jax_sharding": {
        "commit": item("commit"),
        "ring": time_of(1, sharded="sequence_ring", devices=2),
        "ring_kernels": ring_kernels,
        "part_before": part_of_ring(0, 1),
        "part_after": part_of_ring(-1),
    },
    "torch_h200": {
        **{f"call_{name}": item("host_us", name, form=".0f") for name in ("scoremod", "sdpa")},
        **causal_times("scoremod"),
        **causal_times("flex_attention"),
        **training_step("gemma2_block"),
        **training_step("t5_block"),
    },
    "torch_one_import": {
        "forward": item("scoremod", "forward_ms", form=".2f"),
        "backward": item("scoremod", "backward_ms", form=".2f"),
        "flex_forward": item("flex_attention", "forward_ms", form=".2f"),
        "flex_backward": item("flex_attention", "backward_ms", form=".0f"),
    },
}


@functools.cache
def report_of(path):
    return json.loads(path.read_text(encoding="utf-8"))


def with_figures(page, name, root):
    """The text of a page with each marked figure as its record below the folder `root` has it. Raises ValueError for a mark that is none."""

    def figure(found):
        record, _, key = found[1].partition(".")
        make = FIGURES.get(record, {}).get(key)
        if make is None:
            raise ValueError(f"{name}: expected a figure of bench/page_figures.py, found '{found[1]}'")
        return f"<!--={found[1]}-->{make(report_of(root / OTHER_RECORDS.get(record, f'bench/results/{record}.json')))}<!--=-->"

    written = MARK.sub(figure, page)
    if OPENING.search(MARK.sub("", page)) or "<!--=-->" in MARK.sub("", page):
        raise ValueError(f"{name}: expected <!--=--> after each figure's mark, and nowhere else")
    return written


# A measured number: with a unit of time or speed, a percentage, a ratio of times, a count of results, or the commit that was measured.
NUMBER = r"(?<![\w.#/-])\d+(?:,\d{3})*(?:\.\d+)?"
UNITS = r"(?:ms|us|ns|s|seconds|minutes|TFLOP/s|TF/s|GB/s|%|times)"
COUNTED = r"(?:right|wrong|refused|crashed|results)"
MEASURED = re.compile(rf"{NUMBER} (?:{UNITS}|{COUNTED})(?![\w/])|commit [0-9a-f]{{7}}\b")
# Marks, parts that a script writes, and examples are not looked at.
WRITTEN = re.compile(r"<!-- (?P<part>[^>]*?): (?:written by bench/show_records\.py|begin) -->.*?<!-- (?P=part): end -->", re.DOTALL)
EXAMPLES = re.compile(r"^```.*?^```|^    [^\n]*|`[^`\n]*`", re.DOTALL | re.MULTILINE)
TIMES_OF_TABLES = re.compile(r"(?<![\w.-])\d+\.\d+(?![\w.])")


def unmarked(page):
    """The measured figures of a page that no record stands behind: [(heading, figure)]."""
    found, heading, header = [], "", ""
    text = EXAMPLES.sub("", MARK.sub("", WRITTEN.sub("", page)))
    for line in text.split("\n"):
        if line.startswith("#"):
            heading = line.lstrip("# ")
        in_table = line.startswith("|")
        header = (header or line) if in_table else ""
        found += [(heading, match[0]) for match in MEASURED.finditer(line)]
        if in_table and line != header and re.search(r"\b(?:ms|us|TFLOP/s|seconds)\b", header):
            found += [(heading, match[0]) for match in TIMES_OF_TABLES.finditer(line)]
    return found
