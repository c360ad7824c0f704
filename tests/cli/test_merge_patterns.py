"""tools/device/merge.py patterns: a run's rows are summed up to decisions, and take the place of a table's rows of the same patterns."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "cmake"))
import pattern_tables


def table(commit, *rows, **more):
    fixed = {"direction": "forward", "architecture": "sm_90", "cudnn": "9.19.0", "ms": None}
    results = [
        {**fixed, "program": f"of {setting}", **dict(zip(("pattern", "setting", "verdict", "ms"), (pattern, setting, *found)))}
        for pattern, setting, *found in rows
    ]
    return {"machine": "a GPU", "commit": commit, **more, "results": results}


def merged(tmp_path, old, new):
    (tmp_path / "new.json").write_text(json.dumps(new), encoding="utf-8")
    if old is not None:
        (tmp_path / "old.json").write_text(json.dumps(old), encoding="utf-8")
    subprocess.run([sys.executable, ROOT / "tools/device/merge.py", "patterns", "old.json", "new.json"], cwd=tmp_path, timeout=60, check=True)
    return json.loads((tmp_path / "old.json").read_text(encoding="utf-8"))


def rows_of(found):
    return [(row["pattern"], row["setting"], row["verdict"], row["cases"]) for row in found["results"]]


def test_rows_of_the_same_patterns_are_replaced_and_new_patterns_follow(tmp_path):
    old = merged(tmp_path, None, table("1", ("a", "x", "right"), ("a", "y", "right"), ("b", "x", "right"), times="of another run"))
    assert rows_of(old) == [("a", "many_rows", "right", {"right": 2}), ("b", "many_rows", "right", {"right": 1})]
    found = merged(tmp_path, old, table("2", ("c", "x", "right"), ("a", "x", "wrong")))
    assert rows_of(found) == [("a", "many_rows", "wrong", {"wrong": 1}), ("b", "many_rows", "right", {"right": 1}), ("c", "many_rows", "right", {"right": 1})]
    assert (found["commit"], found["times"]) == ("1", "of another run")
    assert found["added"] == [{"commit": "2", "machine": "a GPU", "patterns": ["c", "a"]}]
    again = merged(tmp_path, found, table("3", ("a", "x", "refused"), ("a", "y", "right"), ("a", "one_row", "right")))
    assert rows_of(again)[:2] == [("a", "many_rows", "right", {"refused": 1, "right": 1}), ("a", "one_row", "right", {"right": 1})]
    assert [(entry["commit"], entry["patterns"]) for entry in again["added"]] == [("2", ["c"]), ("3", ["a"])]


def test_the_build_takes_the_same_decisions_from_a_runs_rows_and_from_their_sums(tmp_path):
    """Each verdict may come with each other, timed or not; a time stays with the program that was timed."""
    found = ("right", "wrong", "refused", "crashed", "not_lowered")
    pairs = [
        (f"{x}.{y}", setting, each, ms)
        for x in found
        for y in found
        for setting, each, ms in (("base", x, None), ("other", y, 0.5), ("one_row", y, 0.25), ("third", x, 1.5))
    ]
    run = table("1", *pairs)
    sums = merged(tmp_path, None, run)
    assert pattern_tables.summed_up(sums["results"]) == pattern_tables.summed_up(run["results"])
    assert [row["program"] for row in sums["results"] if row["pattern"] == "right.wrong" and row["ms"]] == ["of other", "of one_row", "of third"]
    assert merged(tmp_path, sums, {**sums, "results": []})["results"] == sums["results"]
