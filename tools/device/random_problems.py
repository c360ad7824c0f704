#!/usr/bin/env python3
"""Holds random problems to the float64 oracle on all GPUs of a machine, some under each of several seeds, and adds the counts to a record.

usage: random_problems.py COMMAND RECORD.json [--seeds N | --again SEED ...] [--problems N] [--seconds N] [--backends NAME ...]

COMMAND is bin/scoremod of pack.sh's folder. Each seed is new, or one of --again, and goes to one GPU, where tools/device/check_suite.sh runs its problems; backends take
turns. A row of the record is one seed: rows of other seeds stay. REPORTS, the record's name without .json, gets each seed's whole report. What was wrong or an
error is printed last, with its program. The exit code is 1 where there is such a result.
"""

import argparse
import itertools
import json
import os
import queue
import secrets
import subprocess
import sys
import threading
import time
from pathlib import Path

CHECK_SUITE = Path(__file__).resolve().parent / "check_suite.sh"


def count_gpus():
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    return len(listed.splitlines())


def row_of(report):
    """The row that the record keeps of one seed. problems: how many were run in time; results: how many outputs or gradients were held."""
    summary = report["summary"]
    row = {key: report[key] for key in ("machine", "commit", "backend", "seed")}
    problems = len({result["problem"] for result in report["results"]})
    row |= {"problems": problems, **{verdict: summary[verdict] for verdict in ("right", "wrong", "refused", "error")}}
    row["results"] = summary["plain_attention"]["outputs"]
    row |= {key: summary["plain_attention"][key] for key in ("median_ratio", "largest_ratio", "beyond_twice_and_band")}
    return row | ({"parts": report["parts"]} if "parts" in report else {})


def not_right(report):
    """A line for each result of a report that is wrong or an error: what it was, and all that its problem is made of."""
    shown = ("problem", "direction", "verdict", "output", "error", "tolerance", "reasons", "sizes", "program")
    head = f"{report['backend']}, seed {report['seed']}: "
    return [head + json.dumps({key: each.get(key) for key in shown}) for each in report["results"] if each["verdict"] in ("wrong", "error")]


def merged(rows, new):
    """The rows of a record with new ones, each seed of a backend once."""
    kept = {(row["backend"], row["seed"]): row for row in rows}
    kept.update(((row["backend"], row["seed"]), row) for row in new)
    return list(kept.values())


def run_seeds(gpu, waiting, options, reports, done):
    """Runs check suites on one GPU until no seed waits, and adds the path of each report to done."""
    cores = os.cpu_count() or 1
    while True:
        try:
            seed, backend = waiting.get_nowait()
        except queue.Empty:
            return
        left = options.end - time.monotonic()
        if left < 30:
            print(f"no time is left for seed {seed}", flush=True)
            continue
        report = reports / f"{backend}_{seed}.json"
        environment = os.environ | {
            "CUDA_VISIBLE_DEVICES": str(gpu),
            "SCOREMOD_PROCESSES": str(max(1, cores // options.gpus)),
            "SCOREMOD_SECONDS": str(int(left)),
        }
        arguments = ["--backend", backend, "--random", str(options.problems), "--filter", "random/", "--seed", str(seed)]
        ended = subprocess.run(["bash", CHECK_SUITE, options.command, report, *arguments], env=environment, capture_output=True, text=True)
        print(f"== {backend}, seed {seed}, GPU {gpu}, exit code {ended.returncode}\n{ended.stdout[-4000:]}{ended.stderr[-2000:]}", flush=True)
        if report.exists():
            done.append(report)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command")
    parser.add_argument("record", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--again", type=int, nargs="+", metavar="SEED", help="run these seeds in place of new ones, with the --problems of then")
    parser.add_argument("--problems", type=int, default=1000, help="under each seed")
    parser.add_argument("--seconds", type=float, default=540, help="begin nothing after so many")
    parser.add_argument("--backends", nargs="+", default=["kernels", "cudnn"])
    options = parser.parse_args(arguments)
    options.end, options.gpus = time.monotonic() + options.seconds, count_gpus()
    reports = options.record.with_suffix("")
    reports.mkdir(parents=True, exist_ok=True)
    waiting, done = queue.SimpleQueue(), []
    for number, seed in enumerate(options.again or [secrets.randbelow(2**31) for _ in range(options.seeds)]):
        waiting.put((seed, options.backends[number % len(options.backends)]))
    workers = [threading.Thread(target=run_seeds, args=(gpu, waiting, options, reports, done)) for gpu in range(options.gpus)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    found = [json.loads(report.read_text(encoding="utf-8")) for report in done]
    rows = [row_of(report) for report in found]
    old = json.loads(options.record.read_text(encoding="utf-8")) if options.record.exists() else []
    options.record.write_text("[\n" + ",\n".join(map(json.dumps, merged(old, rows))) + "\n]\n", encoding="utf-8")
    wrong = sum(row["wrong"] + row["error"] for row in rows)
    for line in itertools.chain.from_iterable(map(not_right, found)):
        print(line)
    print(f"{len(rows)} seeds, {sum(row['right'] for row in rows)} right, {wrong} wrong or an error")
    return 1 if wrong or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
