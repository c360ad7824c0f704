"""The page of acceptance statements: each has a row, with a state and tests that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/internals/acceptance.md").read_text(encoding="utf-8")
REASONS = (ROOT / "docs/reference/unsupported_reasons.md").read_text(encoding="utf-8")
STATEMENTS = {
    f"{letters}-{number}"
    for letters, first, last in (("JX", 2, 18), ("BS", 1, 21), ("CJ", 1, 12), ("AT", 1, 12), ("FE", 2, 6))
    for number in range(first, last + 1)
}
# How a test is written in a language, by what its file ends with.
TESTS = {
    ".py": re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE),
    ".cpp": re.compile(r"^(?:TEST|TEST_F|TEST_P|TYPED_TEST)\((\w+),\s*(\w+)\)", re.MULTILINE),
    ".c": re.compile(r"^static void (test_\w+)\(", re.MULTILINE),
}


def rows(page):
    """(statement's id, state, tests) of each row."""
    for line in page.splitlines():
        if re.match(r"\| [A-Z]{2}-\d+:", line):
            statement, state, tests = (cell.strip() for cell in line.strip("|").split(" |"))
            yield statement.partition(":")[0], state, re.findall(r"`([^`]+)`", tests)


def names_in(file):
    path = ROOT / file
    found = TESTS[path.suffix].findall(path.read_text(encoding="utf-8")) if path.is_file() else []
    return {name if isinstance(name, str) else ".".join(name) for name in found}


def faults(page):
    """A line for each row that is missing, wrong or names no test."""
    seen = [statement for statement, _, _ in rows(page)]
    yield from (f"{statement}: has no row" for statement in sorted(STATEMENTS - set(seen)))
    yield from (f"{statement}: is no statement, or has two rows" for statement in sorted(set(seen)) if statement not in STATEMENTS or seen.count(statement) > 1)
    for statement, state, tests in rows(page):
        kind, _, text = state.partition(":")
        reason = text.strip()
        if kind not in ("yes", "differently", "refused", "open") or (kind == "yes") != (reason == ""):
            yield f"{statement}: expected yes, or differently, refused or open with a text, found {state!r}"
        if kind == "refused" and f"| `{reason}` |" not in REASONS:
            yield f"{statement}: {reason!r} is the id of no unsupported reason"
        if not tests and kind != "open":
            yield f"{statement}: has no test"
        for test in tests:
            file, _, name = test.partition("::")
            if name not in names_in(file):
                yield f"{statement}: {test} is no test"


def test_every_statement_has_a_row_with_tests_that_exist():
    assert list(faults(PAGE)) == []


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("| JX-3: ", "| JX-1: ", "JX-3: has no row"),
        ("| JX-3: ", "| JX-2: ", "JX-2: is no statement, or has two rows"),
        (
            "test_request_queue.py::test_a_backward_is",
            "test_request_queue.py::test_a_backward_was",
            "AT-1: tests/python/test_request_queue.py::test_a_backward_was",
        ),
        ("PlanCache.KeepsRefusals", "PlanCache.KeepsRefusal", "BS-16: tests/unit/plans/plan_cache_test.cpp::PlanCache.KeepsRefusal is no test"),
        ("tests/abi/c_api_test.c::test_queries", "tests/abi/no_test.c::test_queries", "BS-4: tests/abi/no_test.c::test_queries is no test"),
        ("differently: cudnn-frontend keeps all", "yes: cudnn-frontend keeps all", "CJ-3: expected yes, or"),
        ("`tests/cli/test_descriptors.py::test_each_is_destroyed_once`", "", "CJ-3: has no test"),
        ("differently: cudnn-frontend keeps all", "refused: all", "CJ-3: 'all"),
    ],
)
def test_a_fault_is_found(old, new, fault):
    assert old in PAGE
    assert any(each.startswith(fault) for each in faults(PAGE.replace(old, new, 1)))
