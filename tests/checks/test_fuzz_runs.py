"""tools/fuzz/run_all.py with programs that stand for fuzzers."""

import importlib.util
import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "fuzz" / "run_all.py"
SAYS = 'echo "#2 INITED cov: 5 ft: 6 corp: 2/3b"; echo "#90 DONE cov: 7 ft: 9 corp: 3/4b"; echo "stat::number_of_executed_units: 90"\n'


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("run_all", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "bin").mkdir()
    return tmp_path


def write_fuzzer(folder, name, text):
    program = folder / "bin" / f"fuzz_{name}"
    program.write_text(f"#!/usr/bin/env bash\n{text}")
    program.chmod(0o755)


def test_processes_are_counted_together_and_rows_are_added(script, folder):
    write_fuzzer(folder, "one", SAYS)
    record = folder / "record.json"
    record.write_text('[{"fuzzer": "earlier"}]')
    assert script.main([str(folder), str(record), "--seconds", "1", "--processes", "3", "--at-once", "2"]) == 0
    earlier, row = json.loads(record.read_text())
    assert earlier == {"fuzzer": "earlier"}
    assert (row["fuzzer"], row["inputs"], row["coverage_before"], row["coverage"], row["findings"]) == ("one", 270, 5, 7, [])
    assert len(set(row["seeds"])) == 3


@pytest.mark.parametrize("text", ["exit 77\n", 'for each in "$@"; do case "$each" in -artifact_prefix=*) touch "${each#*=}crash-1" ;; esac; done\n'])
def test_a_finding_is_named(script, folder, capsys, text):
    write_fuzzer(folder, "one", SAYS + text)
    assert script.main([str(folder), str(folder / "record.json"), "--seconds", "1"]) == 1
    (row,) = json.loads((folder / "record.json").read_text())
    (finding,) = row["findings"]
    assert finding.startswith(f"one-{row['seeds'][0]}") and finding in capsys.readouterr().out
