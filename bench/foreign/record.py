#!/usr/bin/env python3
"""Runs the foreign suites (tests/foreign) and writes what each case came to into bench/results/foreign_suites.json.

usage: record.py [OUTPUT]

To be run by a Python of .venv, after ./dev build and ./dev torch. SCOREMOD_TORCH_PYTHON, SCOREMOD_BUILD_DIR and SCOREMOD_TEST_SEED mean what
docs/reference/environment.md says. Nothing is written where a test fails; bench/show_records.py then writes the page's tables.
"""

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


def rows_of(python, folder, seed):
    """The results of the cases of a folder, which this Python runs."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "SCOREMOD_TEST_SEED": str(seed)}
    environment.setdefault("SCOREMOD_BUILD_DIR", str(ROOT / "build" / "release"))
    if paths := os.environ.get("PYTHONPATH"):
        environment["PYTHONPATH"] += os.pathsep + paths
    with tempfile.TemporaryDirectory() as scratch:
        rows = Path(scratch) / "rows.json"
        done = subprocess.run([python, "-m", "pytest", "-q", folder, f"--foreign-record={rows}"], cwd=ROOT, env=environment, check=False)
        if done.returncode:
            sys.exit(f"{folder}: a test failed with SCOREMOD_TEST_SEED={seed}, and nothing is recorded")
        return json.loads(rows.read_text(encoding="utf-8"))


def text_of(head, rows):
    """The record as JSON with a line for each row."""
    lines = [f" {json.dumps(name)}: {json.dumps(value)}," for name, value in head.items()]
    return "\n".join(["{", *lines, ' "results": [', ",\n".join("  " + json.dumps(row) for row in rows), " ]", "}"]) + "\n"


def main():
    torch_python = os.environ.get("SCOREMOD_TORCH_PYTHON", str(ROOT / ".venv-torch" / "bin" / "python"))
    seed = int(os.environ.get("SCOREMOD_TEST_SEED") or secrets.randbelow(2**31))
    rows = rows_of(sys.executable, "tests/foreign/jax", seed) + rows_of(torch_python, "tests/foreign/torch", seed)
    versions = {name: importlib.metadata.version(name) for name in ("jax", "numpy", "onnx")}
    versions["torch"] = subprocess.run(
        [torch_python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True, check=True
    ).stdout.strip()
    commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    rows.sort(key=lambda row: (row["suite"], row["case"], row["way"]))
    output = Path(sys.argv[1]) if len(sys.argv) > 1 else RECORD
    output.write_text(text_of({"commit": commit, "seed": seed, "versions": versions}, rows), encoding="utf-8")
    print(f"{len(rows)} results in {output}")


if __name__ == "__main__":
    main()
