#!/usr/bin/env python3
"""Sums up tables of the pattern explorer as C++ constants.

usage: pattern_tables.py OUTPUT.cpp TABLE.json...

A pattern in one direction, for many rows or for one, has the worst verdict and the longest time of its rows in the tables. So does
PatternTable::parse() (src/backend/cudnn/patterns/pattern_table.cpp); a test holds the two to each other.
"""

import json
import sys
from pathlib import Path

# From what says least to what decides: of several rows the last in this order counts.
VERDICTS = ("unknown", "refused", "right", "wrong", "crashed")
DIRECTIONS = ("forward", "backward")
ONE_ROW_SETTINGS = "one_row"

HEAD = """// Made by cmake/pattern_tables.py.
#include "backend/cudnn/patterns/shipped_patterns.hpp"

namespace scoremod::backend::cudnn {
namespace {

using enum PatternVerdict;
using enum Direction;
using enum RowClass;
"""


def enumerator(text):
    return "k" + "".join(part.capitalize() for part in text.split("_"))


def row_class_of(row):
    return "one_row" if row["setting"].startswith(ONE_ROW_SETTINGS) else "many_rows"


def worse(verdict, other):
    """The one that counts of two. The explorer's own failures (no pattern at all, an environment error) say nothing about cuDNN."""
    weight = lambda each: VERDICTS.index(each) if each in VERDICTS else 0  # noqa: E731
    return max(verdict, other, key=weight)


def summed_up(rows):
    """{(row class, direction, name): (verdict, milliseconds)} of one architecture and version."""
    decisions = {}
    for row in rows:
        key = row_class_of(row), row["direction"], row["pattern"]
        verdict, milliseconds = decisions.get(key, ("unknown", 0.0))
        decisions[key] = worse(verdict, row["verdict"]), max(milliseconds, row["ms"] or 0.0)
    return decisions


def sort_key(key):
    row_class, direction, name = key
    return ("many_rows", "one_row").index(row_class), DIRECTIONS.index(direction), name.encode()


def generated(rows_by_source):
    """The C++ file for {(architecture, cuDNN version): rows}."""
    tables = {source: summed_up(rows) for source, rows in sorted(rows_by_source.items())}
    names = sorted({name for table in tables.values() for _, _, name in table})
    offsets, end = {}, 0
    for name in names:
        offsets[name], end = end, end + len(name.encode()) + 1
    text = HEAD
    for number, table in enumerate(tables.values()):
        text += f"\nconstexpr PatternDecision kDecisions{number}[] = {{\n"
        for key in sorted(table, key=sort_key):
            row_class, direction, name = key
            verdict, milliseconds = table[key]
            places = ", ".join(enumerator(part) for part in (row_class, direction, verdict))
            text += f"    {{{offsets[name]}, {places}, {milliseconds!r}}},\n"
        text += "};\n"
    text += "\nconstexpr ShippedPatterns kTables[] = {\n"
    for number, (architecture, version) in enumerate(tables):
        text += f'    {{"{architecture}", "{version}", kDecisions{number}}},\n'
    text += "};\n\n}  // namespace\n\nextern const std::span<const ShippedPatterns> kShippedPatterns = kTables;\n"
    text += "extern const char* const kShippedPatternNames =\n"
    text += "".join(f'    {json.dumps(name)[:-1]}\\0"\n' for name in names)
    return text + "    ;\n\n}  // namespace scoremod::backend::cudnn\n"


def main(output, paths):
    rows = {}
    for path in paths:
        for row in json.loads(Path(path).read_text(encoding="utf-8"))["results"]:
            rows.setdefault((row["architecture"], row["cudnn"]), []).append(row)
    Path(output).parent.mkdir(parents=True, exist_ok=True)
    Path(output).write_text(generated(rows), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2:])
