"""Predicts time and traffic of context-parallel attention on many GPUs, from measured kernel times and stated link rates, for bench/NOTES.md.

usage: predict_sharding.py [--write]

Without --write the table goes to the standard output; with it, into the page. What is assumed stands in Model and beside the table.
"""

import argparse
import json
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGE, RECORD = ROOT / "bench" / "NOTES.md", ROOT / "bench" / "results" / "jax_h200.json"
BEGIN, END = "<!-- bench/jax/predict_sharding.py: begin -->\n", "<!-- bench/jax/predict_sharding.py: end -->\n"
COUNTS = (8, 16, 32, 64, 128, 256, 512, 1024)
BF16, F32, GIB = 2, 4, 2**30


class Model(NamedTuple):
    """One attention layer, forward and backward, under a causal mask that stripes share out evenly, and the links between GPUs."""

    seq: int = 2**20
    heads: int = 32
    heads_kv: int = 8
    dim: int = 128
    gpus_of_host: int = 8
    link_in_host: float = 450e9  # bytes a second and direction of one GPU: NVLink 4 as NVIDIA states it
    link_between_hosts: float = 50e9  # of one GPU with a 400 Gbit/s adapter of its own

    def link(self, count):
        """The slowest that a ring goes over, or that a gathered part comes by."""
        return self.link_in_host if count <= self.gpus_of_host else self.link_between_hosts


class Prediction(NamedTuple):
    compute: float  # seconds of kernels of one GPU
    sent: float  # bytes of one GPU
    transfer: float  # seconds

    def apart(self):
        return self.compute + self.transfer

    def together(self):
        return max(self.compute, self.transfer)


def seconds_per_pair(record):
    """The time of one head's query with a key that a causal mask keeps, forward and backward together."""
    (measured,) = [
        each for each in record["results"] if (each["case"], each["implementation"], each["direction"]) == ("causal", "scoremod", "forward_and_backward")
    ]
    options = record["options"]
    return measured["ms"] / 1e3 / (options["batch"] * options["heads"] * options["seq"] ** 2 / 2)


def compute_seconds(model, count, rate):
    return model.heads * model.seq**2 / 2 / count * rate


def ring(model, count, rate):
    """Keys and values go around forward; backward they do again, and a step behind both gradients, home in the end: sums in float32, or one part's."""
    part = 2 * model.seq // count * model.heads_kv * model.dim  # elements of key and value
    sent = (count - 1) * part * (BF16 + BF16 + (F32 if count > 2 else BF16))
    return Prediction(compute_seconds(model, count, rate), sent, sent / model.link(count))


def all_gather(model, count, rate):
    """Every other part comes once, and is kept for the backward; the gradients are summed where their parts are, in the tensors' dtype."""
    part = 2 * model.seq // count * model.heads_kv * model.dim
    sent = (count - 1) * part * (BF16 + BF16)
    return Prediction(compute_seconds(model, count, rate), sent, sent / model.link(count))


def gathered_bytes(model):
    return 2 * model.seq * model.heads_kv * model.dim * BF16


def table(record, model=Model()):
    rate = seconds_per_pair(record)
    lines = [
        "| GPUs | tokens of each | kernels, ms | ring, GiB sent | ring, ms | all-gather, GiB sent | all-gather, ms |",
        "|---|---|---|---|---|---|---|",
    ]
    for count in COUNTS:
        by_ring, gathered = ring(model, count, rate), all_gather(model, count, rate)
        cells = (
            *(str(count), str(model.seq // count), f"{by_ring.compute * 1e3:.1f}"),
            *(f"{by_ring.sent / GIB:.1f}", f"{by_ring.together() * 1e3:.1f} to {by_ring.apart() * 1e3:.1f}"),
            *(f"{gathered.sent / GIB:.1f}", f"{gathered.apart() * 1e3:.1f}"),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def text(record, model=Model()):
    """The page's part between the two marks."""
    return (
        f"A prediction, no measurement: one causal attention, forward and backward, of {model.seq} tokens in stripes, {model.heads} heads over "
        f"{model.heads_kv}, head dim\n{model.dim}, bf16. Kernels take what the causal case of [bench/results/jax_h200.json](results/jax_h200.json) "
        f"(commit {record['commit']}) took for each pair of a query and a\nkey; {model.gpus_of_host} GPUs of a host are linked by {model.link_in_host / 1e9:.0f} GB/s "
        f"each in one direction, hosts by {model.link_between_hosts / 1e9:.0f} GB/s for each GPU. A ring's transfers may run beside its kernels or not at\nall: "
        "both are said. An all-gather comes before them, and each GPU holds all keys and values, "
        f"{gathered_bytes(model) / GIB:.0f} GiB. Launches, and that kernels of fewer than\nsome thousand tokens are slower, are left out.\n\n"
    ) + table(record, model)


def with_text(page, part):
    begin, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    return page[:begin] + part + page[end:]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true")
    part = text(json.loads(RECORD.read_text(encoding="utf-8")))
    if not parser.parse_args().write:
        print(part, end="")
        return
    PAGE.write_text(with_text(PAGE.read_text(encoding="utf-8"), part), encoding="utf-8")


if __name__ == "__main__":
    main()
