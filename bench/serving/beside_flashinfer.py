#!/usr/bin/env python3
"""Times paged decoding and mixed batches of scoremod and FlashInfer in PyTorch, in turns in one process, and writes a report.

usage: PYTHONPATH=python python bench/serving/beside_flashinfer.py REPORT.json [--device cuda|cpu] [--part N] [--seconds N] [--seed N] [--cases A;B]

Both read the same pages, which are in random order. FlashInfer's plan() is made before: its times are those of run(), and `plan_ms` is the
host's for one plan(). Sampled rows of each are held to float64 attention. `of_copy` is the rate at which a batch's keys and values are read, as a
part of a copy's, whose bytes are read and written. `tflops` is the rate of arithmetic. beside_fa3.py adds FlashAttention-3. A REPORT.json that
exists is continued. --part divides sizes, for machines without a GPU.
"""

import argparse
import json
import random
import sys
import time
from importlib import metadata
from pathlib import Path

import torch
from batches import batches

from scoremod.torch import flex_attention

sys.path.append(str(Path(__file__).resolve().parents[1] / "torch"))
from timing import median_in_turns, warmed

SAMPLES = 16
OURS = "scoremod"
# A row's error relative to the row, of keys and values in 16 bits. FlashInfer multiplies FP8 keys and values in 16 bits, too.
MOST_ERROR = 2**-6
SCALE = 0.1
K_FACTOR, V_FACTOR = 0.5, 0.25


class Tensors:
    """A batch on a device. pool_k and pool_v are [pages, positions of a page, KV heads, dim]; query is [tokens, heads, dim]."""

    def __init__(self, batch, device, seed):
        generator = torch.Generator(device).manual_seed(seed)
        self.batch, self.device = batch, device
        count = sum(batch.pages)

        def normal(*shape):
            return torch.randn(shape, device=device, dtype=torch.bfloat16, generator=generator)

        self.pool_k = normal(count, batch.page, batch.kv_heads, batch.dim).to(getattr(torch, batch.dtype_kv))
        self.pool_v = self.pool_k[..., : batch.dim_v] if batch.is_latent else normal(*self.pool_k.shape).to(self.pool_k.dtype)
        self.query = normal(batch.rows, batch.heads, batch.dim)
        order = torch.randperm(count, device=device, generator=generator).to(torch.int32)
        self.table = torch.zeros(len(batch.lengths), max(batch.pages), device=device, dtype=torch.int32)
        begin = 0
        for sequence, pages in enumerate(batch.pages):
            self.table[sequence, :pages] = order[begin : begin + pages]
            begin += pages
        self.order = order
        self.lengths = self.integers(batch.lengths)
        self.ends = self.offsets(batch.queries)
        self.factors = (K_FACTOR, V_FACTOR) if self.pool_k.element_size() == 1 else None

    def integers(self, values):
        return torch.tensor(values, device=self.device, dtype=torch.int32)

    def offsets(self, counts):
        """[0, counts[0], counts[0] + counts[1], ...]"""
        return torch.nn.functional.pad(self.integers(counts).cumsum(0, dtype=torch.int32), (1, 0))

    def expected(self, sequence, query, head):
        """A row of o in float64."""
        batch = self.batch
        count = batch.lengths[sequence] - batch.queries[sequence] + query + 1
        pages = self.table[sequence, : batch.pages[sequence]].long()
        kv_head = head * batch.kv_heads // batch.heads
        keys, values = (pool[pages, :, kv_head].flatten(0, 1)[:count].double() for pool in (self.pool_k, self.pool_v))
        k_factor, v_factor = self.factors or (1.0, 1.0)
        row = self.query[self.row(sequence, query), head].double()
        return (keys @ row * (SCALE * k_factor)).softmax(0) @ values * v_factor

    def row(self, sequence, query):
        return sum(self.batch.queries[:sequence]) + query


def scoremod_calls(data):
    """{name: call that returns o of all tokens}. Sequences of one query come first, in a call of their own, as docs/guide/serving.md has it."""
    batch = data.batch
    pools = [pool.transpose(1, 2) for pool in (data.pool_k, data.pool_v)]
    options = {"mask_mod": "causal_bottom_right", "enable_gqa": True, "scale": SCALE}
    if data.factors:
        options |= {"descale_k": data.factors[0], "descale_v": data.factors[1]}
    o = data.query.new_empty(batch.rows, batch.heads, batch.dim_v or batch.dim)

    def each_of(begin, end, first, count):
        """Sequences of as many queries each, whose first is a row of the tokens."""
        rows = slice(first, first + (end - begin) * count)
        query, out = (each[rows].unflatten(0, (end - begin, count)).transpose(1, 2) for each in (data.query, o))
        where = {"page_table": data.table[begin:end], "lengths": data.lengths[begin:end], "out": out}
        return lambda: flex_attention(query, *pools, **options, **where)

    if batch.one_count is not None:
        calls = [each_of(0, len(batch.lengths), 0, batch.one_count)]
    else:
        ones = batch.queries.count(1)
        rest = {"page_table": data.table[ones:], "lengths": data.lengths[ones:], "q_offsets": data.ends[ones:] - ones, "out": o[ones:]}
        rest["max_length"] = max(batch.queries)
        calls = [each_of(0, ones, 0, 1), lambda: flex_attention(data.query[ones:], *pools, **options, **rest)]

    def call():
        with torch.no_grad():
            for each in calls:
                each()
        return o

    return {OURS: (call, None)}


def flashinfer_calls(data):
    """{name: (call, plan)} of what FlashInfer has for a batch."""
    import flashinfer

    batch = data.batch
    workspace = torch.empty(256 << 20, dtype=torch.uint8, device=data.device)
    page_ends = data.offsets(batch.pages)
    if batch.is_latent:
        return {"flashinfer fa3": flashinfer_latent(flashinfer, data, workspace, page_ends)}
    last = data.integers([(length - 1) % batch.page + 1 for length in batch.lengths])
    shape = (batch.heads, batch.kv_heads, batch.dim, batch.page)
    dtypes = {"q_data_type": data.query.dtype, "kv_data_type": data.pool_k.dtype, "sm_scale": SCALE}
    scales = {} if data.factors is None else {"k_scale": data.factors[0], "v_scale": data.factors[1]}
    pools = (data.pool_k, data.pool_v)
    found = {}
    if batch.one_count == 1:
        decode = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
        found["flashinfer decode"] = (
            lambda: decode.run(data.query, pools, **scales),
            lambda: decode.plan(page_ends, data.order, last, *shape, **dtypes),
        )
        return found
    for backend in ("fa2", "fa3"):
        prefill = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend=backend)
        found[f"flashinfer {backend}"] = (
            lambda prefill=prefill: prefill.run(data.query, pools),
            lambda prefill=prefill: prefill.plan(data.ends, page_ends, data.order, last, *shape, causal=True, **dtypes),
        )
    return found


def flashinfer_latent(flashinfer, data, workspace, page_ends):
    batch = data.batch
    wrapper = flashinfer.mla.BatchMLAPagedAttentionWrapper(workspace, backend="fa3")
    parts = [each[..., : batch.dim_v].contiguous() for each in (data.query, data.pool_k[:, :, 0])]
    positions = [each[..., batch.dim_v :].contiguous() for each in (data.query, data.pool_k[:, :, 0])]
    dims = (batch.heads, batch.dim_v, batch.dim - batch.dim_v, batch.page)
    return (
        lambda: wrapper.run(parts[0], positions[0], parts[1], positions[1]),
        lambda: wrapper.plan(data.ends, page_ends, data.order, data.lengths, *dims, True, SCALE, data.query.dtype, data.pool_k.dtype),
    )


def error_of(found, data, choose):
    """The greatest error of sampled rows, each relative to the row."""
    most, batch = 0.0, data.batch
    for _ in range(SAMPLES):
        sequence = choose.randrange(len(batch.lengths))
        query, head = choose.randrange(batch.queries[sequence]), choose.randrange(batch.heads)
        expected = data.expected(sequence, query, head)
        most = max(most, float((found[data.row(sequence, query), head].double() - expected).norm() / expected.norm()))
    return most


def copy_rate(device, size):
    """Bytes a second that a copy of so many bytes reads and writes."""
    source = torch.empty(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / (median_in_turns({"copy": lambda: target.copy_(source)}, device)["copy"] * 1e-3)


def ready(name, call, plan, data, choose):
    """(the row's first entries, whether the call can be timed)."""
    row = {"implementation": name}
    try:
        if plan is not None:
            plan()
            begin = time.perf_counter()
            plan()
            row["plan_ms"] = round((time.perf_counter() - begin) * 1e3, 3)
        reason = warmed(call)
        error = None if reason else error_of(call(), data, choose)
    except Exception as raised:  # what another library raises is its own
        reason = (str(raised) or type(raised).__name__).splitlines()[0][:200]
    if reason:
        return row | {"refused": reason}, False
    row["error"] = float(f"{error:.3g}")
    if not error <= MOST_ERROR:
        return row | {"refused": f"its error is {error:.2g}"}, False
    return row, True


def measured(data, implementations, choose, copied):
    """The rows of a batch."""
    rows, calls = [], {}
    for make in implementations:
        try:
            made = make(data)
        except Exception as raised:
            made = {}
            rows.append({"implementation": make.__name__.split("_")[0], "refused": str(raised)[:200]})
        for name, (call, plan) in made.items():
            row, is_timed = ready(name, call, plan, data, choose)
            rows.append(row)
            if is_timed:
                calls[name] = call
    times = median_in_turns(calls, data.device)
    for row in rows:
        if (ms := times.get(row["implementation"])) is not None:
            rate = data.batch.read_bytes / (ms * 1e-3)
            row |= {"ms": ms, "gb_per_s": round(rate * 1e-9), "of_copy": round(rate / copied, 3), "tflops": round(data.batch.flops / ms * 1e-9)}
    return rows


def versions():
    found = {"torch": torch.__version__}
    try:
        found["flashinfer-python"] = metadata.version("flashinfer-python")
    except metadata.PackageNotFoundError:
        pass
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--part", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--cases", default="", help="names, with semicolons between")
    parser.add_argument("--machine", default="")
    parser.add_argument("--commit", default="")
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    report = json.loads(options.report.read_text(encoding="utf-8")) if options.report.exists() else {"seed": options.seed, "results": []}
    report |= {"machine": options.machine, "part": options.part}
    report["versions"] = report.get("versions", {}) | versions()
    done = {row["case"] for row in report["results"]}
    report.setdefault("copy_gb_per_s", round(copy_rate(options.device, (1 << 30) // options.part) * 1e-9, 3))
    choose = random.Random(report["seed"])
    for name, batch in batches(report["seed"], options.part).items():
        if name in done or (options.cases and name not in options.cases.split(";")):
            continue
        if time.monotonic() > deadline:
            print("no time was left for", name, "and what follows it")
            break
        data = Tensors(batch, options.device, report["seed"])
        implementations = [scoremod_calls] if options.device == "cpu" else [scoremod_calls, flashinfer_calls]
        rows = [{"case": name, "commit": options.commit, **row} for row in measured(data, implementations, choose, report["copy_gb_per_s"] * 1e9)]
        report["results"] += rows
        for row in rows:
            print(json.dumps(row), flush=True)
        del data
        options.report.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
