#!/usr/bin/env python3
"""Runs each fuzzer for some time in several processes, each with a new seed, and adds what they came to to a record.

usage: run_all.py FOLDER RECORD.json [--seconds N] [--processes N] [--at-once N] [--inputs NAME ...] [--python PYTHON]

FOLDER is build/fuzz, or what tools/fuzz/pack.sh made of it on another machine: bin/fuzz_NAME, and beside it seeds, dictionaries and corpora. Inputs that lead to new
code are kept in FOLDER/corpus. --python runs fuzz/fuzz_python_calls.py, too, by a Python with PyTorch and atheris; SCOREMOD_LIBRARY then names the library. The record
has a row for each run of a fuzzer. What a fuzzer found lies in FOLDER/findings, is named in the row, and printed. The exit code is 1 where there is a finding.
"""

import argparse
import json
import os
import re
import secrets
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "device"))

import machine  # noqa: E402

PYTHON_CALLS = "python_calls"
STARTED = re.compile(r"INITED\s+cov: (\d+)")
STATE = re.compile(r"^#(\d+)\s+\S+\s+cov: (\d+) ft: \d+ corp: (\d+)/", re.MULTILINE)
EXECUTED = re.compile(r"^stat::number_of_executed_units: (\d+)", re.MULTILINE)


def fuzzers_of(folder):
    return sorted(path.name.removeprefix("fuzz_") for path in (folder / "bin").glob("fuzz_*"))


def place_of(folder, kind, name):
    """A fuzzer's seeds or dictionary: in the folder itself, or in the sources."""
    return next((path for path in (folder / kind / name, ROOT / "fuzz" / kind / name, ROOT / "fuzz" / name) if path.exists()), None)


def command_of(options, name, seed):
    folder, corpus = options.folder, options.folder / "corpus" / name
    corpus.mkdir(parents=True, exist_ok=True)
    program = [options.python, str(ROOT / "fuzz" / "fuzz_python_calls.py")] if name == PYTHON_CALLS else [str(folder / "bin" / f"fuzz_{name}")]
    command = [
        *program,
        f"-seed={seed}",
        f"-max_total_time={options.seconds}",
        "-timeout=20",
        "-report_slow_units=20",
        "-rss_limit_mb=4096",
        "-print_final_stats=1",
    ]
    command.append(f"-artifact_prefix={folder / 'findings' / f'{name}-{seed}-'}")
    if dictionary := place_of(folder, "dictionaries", f"{name}.dict"):
        command.append(f"-dict={dictionary}")
    return [*command, str(corpus), *([str(seeds)] if (seeds := place_of(folder, "seeds", name)) else [])]


def run_one(options, name, seed):
    """Runs one process, and counts what it came to."""
    environment = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join([str(options.folder / "lib"), os.environ.get("LD_LIBRARY_PATH", "")])}
    start = time.monotonic()
    # A fuzzer ends by itself; one whose input hangs is ended by its own -timeout.
    done = subprocess.run(command_of(options, name, seed), capture_output=True, text=True, errors="replace", env=environment, cwd=ROOT, check=False)
    said = done.stdout + done.stderr
    states, executed, started = STATE.findall(said), EXECUTED.findall(said), STARTED.search(said)
    files = sorted(path.name for path in (options.folder / "findings").glob(f"{name}-{seed}-*"))
    if done.returncode and not files:
        files = [f"{name}-{seed}: exit code {done.returncode}"]
    if files:
        print(f"{name}, seed {seed}: {', '.join(files)}\n{said[-6000:]}", flush=True)
    found = {"seed": seed, "seconds": round(time.monotonic() - start), "inputs": int((executed or [states[-1][0] if states else 0])[-1]), "findings": files}
    return found | {"coverage_before": int(started[1]) if started else 0, "coverage": int(states[-1][1]) if states else 0}


def row_of(options, name, processes):
    """Sums up all processes of a fuzzer for the record. Coverage is counted in edges, as libFuzzer does."""
    row = {"fuzzer": name, "machine": machine.machine(), "commit": machine.commit(), "seeds": [each["seed"] for each in processes]}
    row |= {key: sum(each[key] for each in processes) for key in ("seconds", "inputs")}
    row |= {key: max(each[key] for each in processes) for key in ("coverage_before", "coverage")}
    row["corpus"] = len(list((options.folder / "corpus" / name).iterdir()))
    return row | {"findings": [finding for each in processes for finding in each["findings"]]}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("record", type=Path)
    parser.add_argument("--seconds", type=int, default=60, help="of each process")
    parser.add_argument("--processes", type=int, default=1, help="of each fuzzer")
    parser.add_argument("--at-once", type=int, default=os.cpu_count(), help="how many processes of all fuzzers run at the same time")
    parser.add_argument("--inputs", nargs="+")
    parser.add_argument("--python")
    options = parser.parse_args(arguments)
    options.folder = options.folder.resolve()
    (options.folder / "findings").mkdir(exist_ok=True)
    names = options.inputs or [*fuzzers_of(options.folder), *([PYTHON_CALLS] if options.python else [])]
    with ThreadPoolExecutor(options.at_once) as pool:
        # Processes of one fuzzer begin one after the other, so that fewer cores than processes serve all fuzzers alike.
        running = [(name, pool.submit(run_one, options, name, secrets.randbelow(2**31) + 1)) for _ in range(options.processes) for name in names]
        done = [(name, each.result()) for name, each in running]
    rows = [row_of(options, name, [found for other, found in done if other == name]) for name in names]
    old = json.loads(options.record.read_text(encoding="utf-8")) if options.record.exists() else []
    options.record.write_text("[\n" + ",\n".join(map(json.dumps, [*old, *rows])) + "\n]\n", encoding="utf-8")
    for row in rows:
        print(f"{row['fuzzer']}: {row['inputs']} inputs in {row['seconds']} s, {row['coverage']} edges, {row['corpus']} files, {len(row['findings'])} findings")
    return 1 if any(row["findings"] for row in rows) or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
