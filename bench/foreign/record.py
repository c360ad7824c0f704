#!/usr/bin/env python3
"""Runs the foreign suites (tests/foreign) and writes what each case came to into bench/results/foreign_suites.json.

usage: record.py [--output FILE] [TEST_FILE ...]

To be run by a Python of .venv, after ./dev build and ./dev torch. TEST_FILE is a file of tests/foreign, such as jax/test_te_score_mod.py: only these
run then, and the results of other files stay as they are in the record. SCOREMOD_TORCH_PYTHON, SCOREMOD_BUILD_DIR and SCOREMOD_TEST_SEED mean what
docs/reference/environment.md says. Nothing is written where a test fails; bench/show_records.py then writes the page's tables.
"""

import argparse
import importlib.metadata
import json
import os
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "bench" / "results" / "foreign_suites.json"
FOLDERS = ("jax", "torch")


def files_of(folder):
    return sorted(path.relative_to(ROOT / "tests" / "foreign").as_posix() for path in (ROOT / "tests" / "foreign" / folder).glob("test_*.py"))


def rows_of(python, files, seed):
    """The results of the cases of test files of one folder, which this Python runs."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "SCOREMOD_TEST_SEED": str(seed)}
    environment.setdefault("SCOREMOD_BUILD_DIR", str(ROOT / "build" / "release"))
    if paths := os.environ.get("PYTHONPATH"):
        environment["PYTHONPATH"] += os.pathsep + paths
    with tempfile.TemporaryDirectory() as scratch:
        rows = Path(scratch) / "rows.json"
        tests = [f"tests/foreign/{file}" for file in files]
        done = subprocess.run([python, "-m", "pytest", "-q", *tests, f"--foreign-record={rows}"], cwd=ROOT, env=environment, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(tests)}: a test failed with SCOREMOD_TEST_SEED={seed}, and nothing is recorded")
        return json.loads(rows.read_text(encoding="utf-8"))


def merged(record, rows, run, versions):
    """A record with these rows in place of those of the same test files. run: the commit and the seed of the rows; record: None, or an earlier one."""
    files = {row["file"] for row in rows}
    kept = [row for row in record["results"] if row["file"] not in files] if record else []
    if kept and record["versions"] != versions:
        sys.exit(f"the record is of {record['versions']}, and these results are of {versions}: record all files")
    runs = {file: each for file, each in record["runs"].items() if any(row["file"] == file for row in kept)} if record else {}
    runs |= dict.fromkeys(files, run)
    results = sorted(kept + rows, key=lambda row: (row["suite"], row["case"], row["way"]))
    return {"versions": versions, "runs": dict(sorted(runs.items())), "results": results}


def text_of(record):
    """The record as JSON with a line for each run and each result."""
    runs = ",\n".join(f"  {json.dumps(file)}: {json.dumps(run)}" for file, run in record["runs"].items())
    results = ",\n".join("  " + json.dumps(row) for row in record["results"])
    return f'{{\n "versions": {json.dumps(record["versions"])},\n "runs": {{\n{runs}\n }},\n "results": [\n{results}\n ]\n}}\n'


def versions_by(torch_python):
    versions = {name: importlib.metadata.version(name) for name in ("jax", "numpy", "onnx")}
    asked = "import torch, transformers; print(torch.__version__, transformers.__version__)"
    torch, transformers = subprocess.run([torch_python, "-c", asked], capture_output=True, text=True, check=True).stdout.split()
    return versions | {"torch": torch, "transformers": transformers}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=RECORD, help="the record, whose results of other files are kept")
    parser.add_argument("files", metavar="TEST_FILE", nargs="*", help="such as jax/test_te_score_mod.py; without any, all")
    options = parser.parse_args()
    pythons = {"jax": sys.executable, "torch": os.environ.get("SCOREMOD_TORCH_PYTHON", str(ROOT / ".venv-torch" / "bin" / "python"))}
    known = {folder: files_of(folder) for folder in FOLDERS}
    unknown = set(options.files) - {file for files in known.values() for file in files}
    if unknown:
        parser.error(f"expected files of tests/foreign, found {', '.join(sorted(unknown))}")
    seed = int(os.environ.get("SCOREMOD_TEST_SEED") or secrets.randbelow(2**31))
    commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    rows = []
    for folder, files in known.items():
        if chosen := [file for file in files if not options.files or file in options.files]:
            rows += rows_of(pythons[folder], chosen, seed)
    earlier = json.loads(options.output.read_text(encoding="utf-8")) if options.files and options.output.exists() else None
    record = merged(earlier, rows, {"commit": commit, "seed": seed}, versions_by(pythons["torch"]))
    options.output.write_text(text_of(record), encoding="utf-8")
    print(f"{len(rows)} results of seed {seed} in {options.output}")


if __name__ == "__main__":
    main()
