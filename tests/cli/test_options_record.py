"""tools/device/options.sh: processes share the cells of docs/reference/options.md, and the record gets what they found, also before the end."""

import json
import os
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "device" / "options.sh"

# A stand-in for the device's tests: each process writes one cell that is done and one that it is still writing.
PROGRAM = """#!/usr/bin/env bash
read -r part parts <<<"$SCOREMOD_OPTIONS_PART"
cell() { printf '{"backend":"kernels","option":"%s","modifier":"none","case":"%s","cell":"%s"' "$1" "$SCOREMOD_TEST_SEED" "$2"; }
{ cell "part $part of $parts" "0.10 / 0.20"; echo '}'; } >>"$SCOREMOD_OPTIONS_RESULTS"
cell "half a line" "0.1" >>"$SCOREMOD_OPTIONS_RESULTS"
[[ -e $SCOREMOD_OPTIONS_RECORD ]] && grep -c '"case"' "$SCOREMOD_OPTIONS_RECORD"
echo "commit $SCOREMOD_OPTIONS_COMMIT, $SCOREMOD_OPTIONS_SECONDS s"
[[ $part != 1 || -z ${FAIL:-} ]]
"""
OLD = {"backend": "cudnn", "option": "none", "modifier": "none", "case": "1", "cell": "0.30", "machine": "another", "commit": "old"}


def run(tmp_path, **variables):
    (tmp_path / "bin").mkdir(exist_ok=True)
    program = tmp_path / "bin" / "scoremod_device_tests"
    program.write_text(PROGRAM, encoding="utf-8")
    program.chmod(0o755)
    (tmp_path / "record.json").write_text(json.dumps({"cells": [OLD]}), encoding="utf-8")
    environment = {**os.environ, "SCOREMOD_COMMIT": "abc", "SCOREMOD_PROCESSES": "3", **variables}
    ran = subprocess.run([SCRIPT, tmp_path, tmp_path / "record.json", "7"], env=environment, capture_output=True, text=True, timeout=60)
    return ran, json.loads((tmp_path / "record.json").read_text(encoding="utf-8"))["cells"]


def test_processes_share_the_cells_and_the_record_gets_them(tmp_path):
    ran, cells = run(tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert OLD in cells
    found = [cell for cell in cells if cell["backend"] == "kernels"]
    assert [cell["option"] for cell in found] == ["part 0 of 3", "part 1 of 3", "part 2 of 3"]
    assert {cell["commit"] for cell in found} == {"abc"} and len({cell["case"] for cell in found}) == 1
    assert ran.stdout.count("commit abc, 7 s") == 3 and "3 cells run, 4 in the record: {'right': 3}" in ran.stdout


def test_a_process_that_fails_fails_the_script_and_its_cells_are_kept(tmp_path):
    ran, cells = run(tmp_path, FAIL="1")
    assert ran.returncode == 1 and len(cells) == 4
