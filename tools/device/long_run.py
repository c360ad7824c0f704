#!/usr/bin/env python3
"""Calls flex_attention with new functions, shapes, dtypes and layouts for many minutes, and holds the process to the memory, files and threads that it had before.

usage: long_run.py MINUTES RECORD.json [SEED] [--device cuda] [--machine TEXT] [--commit TEXT] [--seconds-between N] [--kept N]

Kept programs, plans and calls are bounded, so all of them are full after some minutes, and from then on nothing may grow. A sample is taken every 20 seconds. The last
quarter of the samples is held to the second one: no more open files, threads and mappings, and at most 2 % more memory. Each sample also repeats some calls of the
beginning, whose results must have the same bits. Of the other calls some are held to dense attention in float64 (tests/torch/dense_reference.py).
--kept limits what each cache keeps: where a call compiles for seconds, as on a GPU, caches of the usual size are not full in time. Caches of functools have no
limit that can be set, so each sample begins by emptying those that have more. The record also says how many attentions and plans the library kept, and of how many
bytes. It has the part of the device's memory that is PyTorch's, too: the rest falls where a plan is dropped, or where a trial ends, which has a workspace.
SEED is random without it, and printed. PYTHONPATH has the folder python, and SCOREMOD_LIBRARY names the library, as for tools/device/torch.sh.
It goes on until there are two samples in each quarter. RECORD.json gets one row, those of other machines and devices stay. The exit code is 1 where something grew, or a result is wrong.
"""

import argparse
import collections
import contextlib
import ctypes
import functools
import gc
import io
import json
import os
import random
import secrets
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("python", "tests/torch")]

import test_random_modifiers as modifiers  # noqa: E402
import torch  # noqa: E402

import scoremod  # noqa: E402
from scoremod import cache  # noqa: E402
from scoremod.bounded_cache import BoundedCache  # noqa: E402
from scoremod.torch import flex_attention, repeated_calls  # noqa: E402

DTYPES = [torch.float32, torch.float32, torch.float16, torch.bfloat16]
HEADS = [(1, 1), (4, 2), (3, 1), (8, 8)]
MOST_GROWTH = 0.02
ENVIRONMENT = ["MALLOC_ARENA_MAX", "CUDA_MODULE_LOADING"]  # what the record says of it
LEAST_SAMPLES = 8  # two in each quarter, however few the minutes are
_libc = ctypes.CDLL(None)


class MallInfo(ctypes.Structure):
    """glibc's mallinfo2."""

    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]


def allocated():
    """The bytes that malloc has given out: in its arenas, and in mappings of their own. 0 where the C library doesn't say."""
    if not hasattr(_libc, "mallinfo2"):
        return 0
    _libc.mallinfo2.restype = MallInfo
    info = _libc.mallinfo2()
    return info.uordblks + info.hblkhd


def tensors_of(choose, make, queries, keys, **shape):
    """(query, key, value) of random sizes."""
    batch = shape.get("batch", choose.randint(1, 3))
    heads, heads_kv = choose.choice(HEADS)
    dim, dim_v = choose.choice([8, 16, 24, 64]), choose.choice([8, 16, 64])
    dtype = choose.choice(DTYPES)
    return [make(batch, h, n, d).to(dtype) for h, n, d in ((heads, queries, dim), (heads_kv, keys, dim), (heads_kv, keys, dim_v))]


def held_function(choose, make):
    """A random function with its gradients, held to float64. The test prints what it draws."""
    drawn = io.StringIO()
    try:
        with contextlib.redirect_stdout(drawn):
            modifiers.hold_to_the_dense_computation(choose.randrange(2**31), 0)
    except AssertionError:
        print(drawn.getvalue())
        raise


def new_function(choose, make):
    """A random function of captured tensors, forward and backward."""
    queries, keys = choose.randint(1, 150), choose.randint(1, 150)
    q, k, v = (x.requires_grad_() for x in tensors_of(choose, make, queries, keys))
    captured = [(make(*sizes) * 0.5).requires_grad_() for sizes in ((q.shape[1],), (queries + keys,), (q.shape[0], keys))]
    score_mod = modifiers.function(modifiers.tree(choose), modifiers.leaves(captured, keys))
    o = flex_attention(q, k, v, score_mod, mask_mod=choose.choice(modifiers.MASKS), enable_gqa=True)
    o.float().sum().backward()


def new_text(choose, make):
    """A function whose text no call had, as a notebook's cell makes one each time."""
    source = f"lambda score, b, h, i, j: score * {choose.uniform(0.5, 1.5)!r} + (i - j) * {choose.uniform(-0.1, 0.1)!r}"
    flex_attention(*tensors_of(choose, make, 20, choose.randint(1, 60)), eval(source), enable_gqa=True)


def growing(choose, make):
    """A decode loop, whose keys grow by one."""
    q, k, v = tensors_of(choose, make, 1, 90)
    slopes, first = make(q.shape[1]), choose.randint(1, 40)
    with torch.no_grad():
        for n in range(first, first + 50):
            flex_attention(q, k[:, :, :n], v[:, :, :n], lambda score, b, h, i, j: score + slopes[h] * j, enable_gqa=True)


def ragged(choose, make):
    """Sequences one after the other, with their backward."""
    lengths = [choose.randint(0, 30) for _ in range(choose.randint(1, 5))]
    offsets = torch.tensor([0, *lengths], dtype=torch.int32, device=make(1).device).cumsum(0, dtype=torch.int32)
    q, k, v = (x[0].transpose(0, 1).contiguous().requires_grad_() for x in tensors_of(choose, make, max(sum(lengths), 1), max(sum(lengths), 1), batch=1))
    flex_attention(q, k, v, q_offsets=offsets, mask_mod="causal", enable_gqa=True, max_length=32).float().sum().backward()


def pages(choose, make):
    """Decoding over a paged KV cache."""
    batch, columns, block = choose.randint(1, 4), choose.randint(1, 6), choose.choice([1, 4, 16])
    q, _, _ = tensors_of(choose, make, choose.randint(1, 4), 1, batch=batch)
    k, v = (make(batch * columns + 2, q.shape[1], block, q.shape[3]).to(q.dtype) for _ in range(2))
    order = choose.sample(range(batch * columns), batch * columns)
    table = torch.tensor(order, dtype=torch.int32, device=q.device).reshape(batch, columns)
    lengths = torch.tensor([choose.randint(0, columns * block) for _ in range(batch)], dtype=torch.int32, device=q.device)
    flex_attention(q, k, v, page_table=table, lengths=lengths)


def token_lists(choose, make):
    """Each query with a list of its keys."""
    q, k, v = tensors_of(choose, make, choose.randint(1, 20), choose.randint(1, 60))
    entries = [[[choose.randint(-1, k.shape[2] - 1) for _ in range(12)] for _ in range(q.shape[2])] for _ in range(q.shape[0])]
    flex_attention(q, k, v, token_list=torch.tensor(entries, device=q.device), enable_gqa=True)


def refused(choose, make):
    """A mistake of the caller, which raises."""
    q, k, v = tensors_of(choose, make, 8, 9)
    try:
        flex_attention(q, k, v[:, :, :8], lambda score, b, h, i, j: score + h, enable_gqa=True)
    except scoremod.InvalidArgumentError:
        return
    raise AssertionError("expected values of another length to be refused")


KINDS = {held_function: 1, new_function: 6, new_text: 6, growing: 4, ragged: 4, pages: 6, token_lists: 4, refused: 2}


class Canaries:
    """Calls of the beginning with their results."""

    def __init__(self, choose, make):
        tensors = [tensors_of(choose, make, 33, 70) for _ in range(6)]
        self.calls = [(each, make(each[0].shape[1])) for each in tensors]
        self.expected = [self._results(*call) for call in self.calls]

    def hold(self):
        for call, expected in zip(self.calls, self.expected, strict=True):
            assert all(map(torch.equal, self._results(*call), expected)), "a call of the beginning has another result now"

    def _results(self, tensors, slopes):
        q, k, v = (x.detach().requires_grad_() for x in tensors)
        o = flex_attention(q, k, v, lambda score, b, h, i, j: score + slopes[h] * (j - i), enable_gqa=True, deterministic=True)
        return [o.detach(), *torch.autograd.grad(o.float().sum(), (q, k, v))]


def sample(device):
    """The process: memory in bytes that no file backs, and counts of all else."""
    gc.collect()
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)
    own = Path("/proc/self")
    # Pages of libraries come in as their code is first used, and stay: a new function may use a part of cuDNN that none did before.
    anonymous = next(line for line in (own / "status").read_text().splitlines() if line.startswith("RssAnon:"))
    taken = {
        "memory": 1024 * int(anonymous.split()[1]),
        "files": len(list((own / "fd").iterdir())),
        "threads": len(list((own / "task").iterdir())),
        "mappings": len((own / "maps").read_text().splitlines()),
        "objects": len(gc.get_objects()),
    }
    if device.type == "cuda":
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        taken["device_memory"] = total - free
    return taken


def kept(device):
    """Counts what the library keeps, and PyTorch's part of the device's memory. They say why memory is as it is, and nothing is held to them."""
    found = cache.statistics()
    counts = {"attentions": found["attentions"]["entries"], "plans": found["plans"]["entries"], "plan_bytes": found["plans"]["bytes"]}
    counts |= {"plans_dropped": found["plans"]["evictions"], "trials": found["trials"]["count"]}
    if device.type == "cuda":
        counts["device_memory_of_torch"] = torch.cuda.memory_reserved()
    return counts


def growth(samples):
    """name -> (the second quarter's, the last quarter's), medians of memory and the largest of all else."""
    count = len(samples) // 4
    found = {}
    for name in samples[0]:
        of = statistics.median if "memory" in name else max
        found[name] = [of([each[name] for each in part]) for part in (samples[count : 2 * count], samples[-count:])]
    return found


def grown(found):
    """The names of what grew. Objects of Python follow from what is kept just then, and memory from where it is: both are allowed a little."""
    is_loose = lambda name: "memory" in name or name in ("objects", "mappings")  # noqa: E731
    return [name for name, (before, after) in found.items() if after > before * (1 + MOST_GROWTH if is_loose(name) else 1)]


def keep_at_most(count):
    """Limits every cache of programs, plans and calls to so many entries, but for those of functools."""
    cache.set_limits(attentions=count, plans=count)
    for each in gc.get_objects():
        if isinstance(each, BoundedCache):
            each._limit = count  # which no caller needs
    # Each function that calls are known by has a cache for each of its variants.
    repeated_calls._MAX_SIZES, repeated_calls._MAX_VARIANTS = count, 2


def limited_functions():
    """scoremod's functions whose results functools keeps, up to a number."""
    found = [each for each in gc.get_objects() if type(each) is functools._lru_cache_wrapper]
    return [each for each in found if each.__module__.startswith("scoremod.") and each.cache_parameters()["maxsize"] is not None]


def forget_beyond(count):
    """Empties each cache of functools that has more entries."""
    for each in limited_functions():
        if each.cache_info().currsize > count:
            each.cache_clear()


def run(options, device):
    """(samples, how many calls of each kind there were, what malloc had given out at each sample, what was kept)."""
    choose = random.Random(options.seed)
    generator = torch.Generator(device).manual_seed(options.seed % 2**31)
    make = lambda *sizes: torch.randn(sizes, generator=generator, device=device)  # noqa: E731
    canaries, counts, samples, given_out, kept_then = Canaries(choose, make), collections.Counter(), [], [], []
    kinds, weights = zip(*KINDS.items(), strict=True)
    end, next_sample = time.monotonic() + 60 * options.minutes, time.monotonic() + options.seconds_between
    while time.monotonic() < end or len(samples) < LEAST_SAMPLES:
        kind = choose.choices(kinds, weights)[0]
        kind(choose, make)
        counts[kind.__name__] += 1
        if time.monotonic() >= next_sample:
            if options.kept is not None:
                forget_beyond(options.kept)
            canaries.hold()
            samples.append(sample(device))
            given_out.append(allocated())
            kept_then.append(kept(device))
            next_sample = time.monotonic() + options.seconds_between
    return samples, counts, given_out, kept_then


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("minutes", type=float)
    parser.add_argument("record", type=Path)
    parser.add_argument("seed", type=int, nargs="?", default=secrets.randbelow(2**31))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--machine", default="")
    parser.add_argument("--commit", default="")
    parser.add_argument("--seconds-between", type=float, default=20)
    parser.add_argument("--kept", type=int)
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    print(f"seed {options.seed}, on {options.device}", flush=True)
    if options.kept is not None:
        keep_at_most(options.kept)
    samples, counts, given_out, kept_then = run(options, device)
    found = growth(samples)
    too_much = grown(found)
    key = {"machine": options.machine, "device": options.device}
    row = {**key, "commit": options.commit, "seed": options.seed, "minutes": options.minutes, "samples": len(samples), "calls": dict(counts)}
    row |= {} if options.kept is None else {"kept": options.kept}
    row |= {"second_and_last_quarter": found, "kept_in_second_and_last_quarter": growth(kept_then)}
    row |= {"objects_of_samples": [each["objects"] for each in samples], "memory_of_samples": [each["memory"] for each in samples]}
    row |= {"allocated_of_samples": given_out, "environment": {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}, "grew": too_much}
    rows = json.loads(options.record.read_text(encoding="utf-8")) if options.record.exists() else []
    rows = [each for each in rows if any(each[name] != value for name, value in key.items())] + [row]
    options.record.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n", encoding="utf-8")
    print(json.dumps(row, indent=1))
    return 1 if too_much else 0


if __name__ == "__main__":
    sys.exit(main())
