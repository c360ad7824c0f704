"""Which branches coverage.py says are not taken, on reports as gcovr writes them."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "checks"))
import coverage  # noqa: E402

TEXT = {1: "if (a && b) return x;", 2: "return y;", 3: 'default: fail_bug("no kind");', 4: "switch (kind) {"}


def report(*lines):
    """gcovr's report of (number, runs, count of each branch) each, of one file."""
    return {"files": [{"file": "src/ir/x.cpp", "lines": [{"line_number": n, "count": runs, "branches": [{"count": c} for c in of]} for n, runs, *of in lines]}]}


def untaken(report, reasons=()):
    lines = coverage.lines_of(report, lambda _, number: TEXT[number])
    found, unneeded = coverage.untaken(lines, dict.fromkeys(reasons, "why"), lambda line: TEXT[line.number])
    return [line.number for line in found], unneeded


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([(1, 5, 3, 2)], []),
        ([(1, 5, 5, 0)], [1]),
        ([(2, 0)], [2]),
        ([(3, 0)], []),  # a bug's message
        ([(4, 9, 9, 0)], []),  # its cases are lines of their own
        ([(1, 5, 5, 0), (1, 4, 0, 4)], []),  # two instances of a template, which take all between them
        ([(1, 5, 5, 0), (1, 4, 4, 0)], [1]),
        ([(1, 5, 5, 0), (1, 4, 1, 1, 1)], [1]),  # instances whose branches are others
    ],
)
def test_what_is_not_taken(lines, expected):
    assert untaken(report(*lines)) == (expected, [])


def test_a_reason_is_for_a_line_that_needs_it():
    key = ("src/ir/x.cpp", TEXT[1])
    assert untaken(report((1, 5, 5, 0)), [key]) == ([], [])
    assert untaken(report((1, 5, 3, 2)), [key]) == ([], [key])
    assert untaken(report((1, 5, 5, 0)), [("src/ir/x.cpp", "another line")]) == ([1], [("src/ir/x.cpp", "another line")])


def test_folders_are_summed():
    lines = list(coverage.lines_of(report((1, 5, 5, 0), (2, 0)), lambda _, number: TEXT[number]))
    found = coverage.folders_of(lines, lambda line: line.number == 1)["ir"]
    assert found == {"lines": 2, "lines_taken": 1, "branches": 2, "branches_taken": 1, "branches_listed": 1}


def test_the_folders_are_those_that_the_build_counts():
    recorded = json.loads((ROOT / "bench/results/coverage.json").read_text(encoding="utf-8"))["folders"]
    assert coverage.FOLDERS == tuple(recorded), "run ./dev coverage --record bench/results/coverage.json"
    assert all(any((ROOT / "src" / name).glob("*.cpp")) for name in coverage.FOLDERS)
    listed = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    assert listed.count("passes") == 1, "a second list of the folders"


def test_a_folder_that_is_missing_from_the_report_is_found():
    lines = list(coverage.lines_of(report((1, 5, 5, 0)), lambda _, number: TEXT[number]))
    assert coverage.uncounted(coverage.folders_of(lines, lambda _: False)) == [name for name in coverage.FOLDERS if name != "ir"]
