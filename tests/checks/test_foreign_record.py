"""bench/foreign: a record of some test files keeps the results of the others, and the page shows the seed of each suite."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = {"torch": "1", "onnx": "2", "transformers": "3"}


def script(name):
    spec = importlib.util.spec_from_file_location(f"foreign_{name}", ROOT / "bench" / "foreign" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RECORD, TABLES = script("record"), script("tables")


def row(suite, file, case="one", **result):
    return {"suite": suite, "case": case, "way": "jax", "file": file, **(result or {"ratio": 1.0})}


def test_results_of_other_files_are_kept_with_their_seed():
    both = RECORD.merged(None, [row("B", "jax/test_b.py"), row("A", "jax/test_a.py")], {"commit": "c1", "seed": 1}, VERSIONS)
    assert [each["suite"] for each in both["results"]] == ["A", "B"]
    later = RECORD.merged(both, [row("B", "jax/test_b.py", "two")], {"commit": "c2", "seed": 2}, VERSIONS)
    assert [(each["suite"], each["case"]) for each in later["results"]] == [("A", "one"), ("B", "two")]
    assert later["runs"] == {"jax/test_a.py": {"commit": "c1", "seed": 1}, "jax/test_b.py": {"commit": "c2", "seed": 2}}
    assert json.loads(RECORD.text_of(later)) == later
    whole = RECORD.merged(None, [row("C", "torch/test_c.py")], {"commit": "c3", "seed": 3}, VERSIONS)
    assert list(whole["runs"]) == ["torch/test_c.py"]


def test_results_of_other_versions_are_not_mixed():
    record = RECORD.merged(None, [row("A", "jax/test_a.py"), row("B", "jax/test_b.py")], {"commit": "c1", "seed": 1}, VERSIONS)
    with pytest.raises(SystemExit, match="record all files"):
        RECORD.merged(record, [row("B", "jax/test_b.py")], {"commit": "c2", "seed": 2}, VERSIONS | {"torch": "4"})


def test_the_table_shows_the_seeds_of_each_suite():
    rows = [row(suite, "jax/test_a.py") for suite in TABLES.SOURCES] + [row("CUDA.jl attention", "torch/test_b.py", "two", refused="dtype: float64")]
    runs = {"jax/test_a.py": {"commit": "c1", "seed": 11}, "torch/test_b.py": {"commit": "c1", "seed": 12}}
    lines = TABLES.suites({"versions": VERSIONS, "runs": runs, "results": rows})
    assert len(lines) == 2 + len(TABLES.SOURCES)
    assert "| ONNX Attention | 1 | data of the wheel onnx 2 | 11 | 1 | 0 | 1 | 1 |" in lines
    assert lines[-1] == "| CUDA.jl attention | 2 | written anew | 11, 12 | 1 | 1 | 1 | 1 |"


def test_every_test_file_of_the_committed_record_is_there():
    record = json.loads(RECORD.RECORD.read_text(encoding="utf-8"))
    known = [file for folder in RECORD.FOLDERS for file in RECORD.files_of(folder)]
    assert set(record["runs"]) == {each["file"] for each in record["results"]} == set(known)
