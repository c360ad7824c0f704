#!/usr/bin/env python3
"""Collects the negative controls of the tests: those that plant a fault, and fail where nothing sees it.

usage: planted_faults.py [--check]

They are found by their names or, in C++, by the fault in their body, and written to bench/results/planted_faults.json with the texts that they give
to their faults. bench/show_records.py makes the tables of two pages of them. --check writes nothing; the exit code is 1 where the file has another
list than the tests.
"""

import argparse
import ast
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECORD = "bench/results/planted_faults.json"
# A test and its body, which ends on the same line, or where a line begins with a bracket.
_CPP = re.compile(r"^(?:TEST|TEST_F|TEST_P|TYPED_TEST)\((\w+),\s*(\w+)\) (\{ [^\n]*|\{\n.*?^\})", re.MULTILINE | re.DOTALL)
_CPP_NAME = re.compile(r"Faults|NegativeControl|Planted|(?:Is|Are)(?:Seen|Found)(?:AtAWrongPlace)?$|Finds\w*Wrong|Wrong\w*IsWrong")
# A change of an emulated kernel's text, in a test whose name says what is right.
_CPP_FAULT = re.compile(r"\bFault\b[ {]")
_POSITIVE = "TheRightImplementationPasses"
_KINDS = (
    "fault|wrong|violation|missing|without|off_by_one|another|leak|no_tree|other|unseen|not_kept|is_kept|no_key|in_a_key|zeros|planted|long|empty_cell|stays"
)
_PYTHON_NAME = re.compile(rf"test_\w*(?:{_KINDS})\w*?_(?:seen|found|found_once|found_in_prose_and_in_names|noticed|noticed_and_shown|fails?)$")
# A name of a fault, in the table of a test with parameters or beside what must not hold.
_TEXTS = re.compile(r'EXPECT_(?:FALSE|NE|GT)\((?:(?!EXPECT_).)*?<< "(\w[^"]*[\w\x27])"|EXPECT_DEATH\((?:(?!EXPECT_).)*?"([^"]+)"\);', re.DOTALL)
_TABLE = re.compile(r'^ *\{"(\w+)",', re.MULTILINE)


def table_of(text, suite):
    """The names of a suite's parameters, which stand in a table."""
    given = re.search(rf"INSTANTIATE_TEST_SUITE_P\(\s*\w+,\s*{suite},\s*(?:::testing|testing)::ValuesIn\((\w+)\)", text)
    table = given and re.search(rf"\b{given[1]}\[\] *=? *\{{\n(.*?)^\}};", text, re.MULTILINE | re.DOTALL)
    return _TABLE.findall(table[1]) if table else []


def controls_of(path, root):
    """[{"test": ..., "planted": texts}] of a file."""
    text, file = path.read_text(encoding="utf-8"), path.relative_to(root).as_posix()
    if path.suffix == ".py":
        names = [each.name for each in ast.parse(text).body if isinstance(each, ast.FunctionDef)]
        return [{"test": f"{file}::{name}", "planted": []} for name in names if _PYTHON_NAME.match(name)]
    found = []
    for suite, name, body in _CPP.findall(text):
        if name != _POSITIVE and (_CPP_NAME.search(f"{suite}.{name}") or _CPP_FAULT.search(body)):
            planted = [first or second for first, second in _TEXTS.findall(body)] or table_of(text, suite)
            found.append({"test": f"{file}::{suite}.{name}", "planted": planted})
    return found


def collected(root=ROOT):
    """The controls of all files, in the order of their names."""
    files = sorted(path for ending in ("cpp", "py") for path in (root / "tests").rglob(f"*.{ending}"))
    return [control for path in files for control in controls_of(path, root)]


def differences(recorded, found):
    """A line for each control that only one of them has, or that they have otherwise."""
    recorded, found = ({each["test"]: each["planted"] for each in controls} for controls in (recorded, found))
    yield from (f"{test}: is listed, and no such negative control is there" for test in recorded if test not in found)
    yield from (f"{test}: is a negative control, and not listed" for test in found if test not in recorded)
    yield from (f"{test}: plants {found[test]}, listed with {recorded[test]}" for test in found if recorded.get(test, found[test]) != found[test])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, and name what is listed otherwise")
    check = parser.parse_args().check
    path, found = ROOT / RECORD, collected()
    if check:
        different = list(differences(json.loads(path.read_text(encoding="utf-8")), found))
        print(*different, f"{len(found)} negative controls, {len(different)} listed otherwise", sep="\n")
        return 1 if different else 0
    lines = ",\n".join("  " + json.dumps(control, ensure_ascii=False) for control in found)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    print(f"{len(found)} negative controls in {RECORD}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
