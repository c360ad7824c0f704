"""tools/device/merge_patterns.py: rows of some patterns take the place of a table's."""

import json
import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools" / "device" / "merge_patterns.py"


def table(commit, *rows, **more):
    results = [{"pattern": pattern, "setting": setting, "verdict": verdict} for pattern, setting, verdict in rows]
    return {"machine": "a GPU", "commit": commit, **more, "results": results}


def merged(tmp_path, old, new):
    for name, value in (("old.json", old), ("new.json", new)):
        (tmp_path / name).write_text(json.dumps(value), encoding="utf-8")
    subprocess.run([sys.executable, TOOL, "old.json", "new.json"], cwd=tmp_path, timeout=60, check=True)
    return json.loads((tmp_path / "old.json").read_text(encoding="utf-8"))


def test_rows_of_the_same_patterns_are_replaced_and_new_patterns_follow(tmp_path):
    old = table("1", ("a", "x", "right"), ("a", "y", "right"), ("b", "x", "right"), times="of another run")
    found = merged(tmp_path, old, table("2", ("c", "x", "right"), ("a", "x", "wrong")))
    assert [tuple(row.values()) for row in found["results"]] == [("a", "x", "wrong"), ("b", "x", "right"), ("c", "x", "right")]
    assert (found["commit"], found["times"]) == ("1", "of another run")
    assert found["added"] == [{"commit": "2", "machine": "a GPU", "patterns": ["c", "a"]}]
    again = merged(tmp_path, found, table("3", ("a", "x", "refused"), ("a", "y", "right")))
    assert [row["verdict"] for row in again["results"]] == ["refused", "right", "right", "right"]
    assert [(entry["commit"], entry["patterns"]) for entry in again["added"]] == [("2", ["c"]), ("3", ["a"])]
