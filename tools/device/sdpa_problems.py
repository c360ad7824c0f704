#!/usr/bin/env python3
"""Runs random attention problems, drawn as cuDNN's frontend draws its tests', on a GPU and holds each to dense attention in float64.

usage: sdpa_problems.py COUNT [SEED] [--record RECORD.json] [--processes N] [--seconds N] [--device cpu] [--longest N] [--widest N]

Problem i has the seed SEED + i, so that `sdpa_problems.py 1 SEED` repeats one that failed. SEED is random without it, and printed. Several processes share the
problems, as each problem's kernels have to be compiled. RECORD.json gets a row of what the problems of this seed came to; rows of other seeds stay. Problems that no
time was left for are not in it: a call with the seed of the first of them goes on. PYTHONPATH has the folder python, and SCOREMOD_LIBRARY names the library, as for
tools/device/torch.sh. The exit code is 1 where a result is wrong, or a process crashed.
"""

import argparse
import collections
import json
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("python", "tests/foreign", "tests/foreign/torch", "tests/torch", "tools/device")]

import machine  # noqa: E402
import sdpa_in_torch  # noqa: E402
import sdpa_problems  # noqa: E402
import torch  # noqa: E402
from errors_in_torch import largest_ratio  # noqa: E402

import scoremod  # noqa: E402
from scoremod.torch import explain  # noqa: E402

TO_END = 60  # seconds that a process has for the problem that it is at


def refusal_ids(problem, device):
    """The ids of the reasons that all backends of the device's memory give."""
    found = set()

    def told(*tensors, return_lse, **options):
        answers = explain(*tensors, **options).compiled["backends"]
        found.update(refusal["id"] for answer in answers for refusal in answer["refusals"])
        raise scoremod.UnsupportedError("told")

    _, tensors, sink = sdpa_in_torch.inputs(problem, device)
    try:
        sdpa_in_torch.call(problem, device, told)(*tensors, *sdpa_in_torch.functions(problem, device), sink)
    except scoremod.Error:  # explain() refuses tensors without elements, and then there are no ids
        return sorted(found)


def outcome_of(problem, device):
    """("right", the largest ratio), ("refused", ids and the message), ("wrong", what is wrong) or ("no memory", the message)."""
    try:
        return "right", largest_ratio(*sdpa_in_torch.held(problem, device))
    except scoremod.UnsupportedError as refusal:
        return "refused", [refusal_ids(problem, device), str(refusal)]
    except (AssertionError, scoremod.Error) as wrong:
        return "wrong", str(wrong)
    except torch.OutOfMemoryError as error:
        torch.cuda.empty_cache()
        return "no memory", str(error)


def run_share(options, end):
    """A process's share of the problems: a line of JSON to its file for each as it begins, and one as it ends."""
    with options.lines.open("w", encoding="utf-8") as lines:
        for seed in range(options.seed + options.share, options.seed + options.count, options.processes):
            if time.monotonic() > end:
                return
            problem = sdpa_problems.draw(seed, options.longest, options.widest)
            print(json.dumps([seed, "begun", str(problem)]), file=lines, flush=True)
            outcome, what = outcome_of(problem, options.device)
            print(json.dumps([seed, outcome, what]), file=lines, flush=True)


def run_here(options):
    """seed -> (outcome, what), by this process."""
    with tempfile.TemporaryDirectory() as scratch:
        options.share, options.lines = 0, Path(scratch) / "lines"
        run_share(options, time.monotonic() + options.seconds)
        rows = map(json.loads, options.lines.read_text(encoding="utf-8").splitlines())
        return {seed: (outcome, what) for seed, outcome, what in rows if outcome != "begun"}


def run_processes(options):
    """seed -> (outcome, what), by several; the problem at which one crashed or hung is "crashed"."""
    found, given = {}, ["--device", options.device, "--longest", str(options.longest), "--widest", str(options.widest)]
    given += ["--seconds", str(options.seconds), "--processes", str(options.processes)]
    with tempfile.TemporaryDirectory() as scratch:
        files = [Path(scratch) / str(share) for share in range(options.processes)]
        start = [sys.executable, __file__, str(options.count), str(options.seed), *given]
        running = [subprocess.Popen([*start, "--share", str(share), "--lines", str(file)]) for share, file in enumerate(files)]
        end = time.monotonic() + options.seconds + TO_END
        for process in running:
            try:
                process.wait(max(end - time.monotonic(), 1))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for process, file in zip(running, files, strict=True):
            # A killed process may have left half a line.
            text = file.read_text(encoding="utf-8") if file.exists() else ""
            rows = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
            found.update((seed, (outcome, what)) for seed, outcome, what in rows if outcome != "begun")
            if process.returncode:
                found.update({seed: ("crashed", f"exit code {process.returncode}: {what}") for seed, outcome, what in rows[-1:] if outcome == "begun"})
    return found


def row_of(options, found):
    """Sums up a run for the record. refused: how many were by reasons with these ids; wrong, crashed and no_memory: the seeds."""
    seeds = {kind: sorted(seed for seed, (outcome, _) in found.items() if outcome == kind) for kind in ("right", "refused", "wrong", "crashed", "no memory")}
    ratios = [found[seed][1] for seed in seeds["right"]]
    ids = collections.Counter(", ".join(found[seed][1][0]) for seed in seeds["refused"])
    row = {"machine": machine.machine(), "versions": machine.versions("torch"), "commit": machine.commit(), "device": options.device}
    row |= {"seed": options.seed, "longest": options.longest, "widest": options.widest, "problems": len(found), "right": len(seeds["right"])}
    row |= {"refused": dict(sorted(ids.items())), "wrong": seeds["wrong"], "crashed": seeds["crashed"], "no_memory": seeds["no memory"]}
    rounded = {name: float(f"{of(ratios):.4g}") if ratios else None for name, of in (("median_ratio", statistics.median), ("largest_ratio", max))}
    return row | rounded


def write_row(record, row):
    rows = json.loads(record.read_text(encoding="utf-8")) if record.exists() else []
    rows = [each for each in rows if (each["seed"], each["device"]) != (row["seed"], row["device"])] + [row]
    record.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n", encoding="utf-8")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int)
    parser.add_argument("seed", type=int, nargs="?", default=secrets.randbelow(2**31))
    parser.add_argument("--record", type=Path)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--longest", type=int, default=8192, help="the most queries or keys")
    parser.add_argument("--widest", type=int, default=256, help="the largest head dim")
    parser.add_argument("--seconds", type=float, default=480, help="begin no problem after so many")
    parser.add_argument("--share", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--lines", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    start = time.monotonic()
    if options.share is not None:
        run_share(options, start + options.seconds)
        return 0
    on = torch.cuda.get_device_name() if options.device == "cuda" else options.device
    print(f"seed {options.seed}, on {on}", flush=True)
    found = run_here(options) if options.processes == 1 else run_processes(options)
    for seed, (outcome, what) in sorted(found.items()):
        if outcome != "right":
            print(f"{outcome}: {sdpa_problems.draw(seed, options.longest, options.widest)}\n  {what}")
    left = sorted(set(range(options.seed, options.seed + options.count)) - set(found))
    if left:
        print(f"no time was left for {len(left)} problems, of which the first has the seed {left[0]}")
    row = row_of(options, found)
    if options.record:
        write_row(options.record, row | {"seconds": round(time.monotonic() - start)})
    said = f"{row['right']} right, {sum(row['refused'].values())} refused, {len(row['wrong'])} wrong, {len(row['crashed'])} crashed"
    print(f"{said}, {len(row['no_memory'])} without memory; the largest error by the plain computation's: {row['largest_ratio']}")
    return 1 if row["wrong"] or row["crashed"] or not found else 0


if __name__ == "__main__":
    sys.exit(main())
