#!/usr/bin/env python3
"""Puts the rows of a run that tried some patterns only into a table of patterns.

usage: merge_patterns.py TABLE.json NEW.json

NEW's rows take the place of TABLE's rows of the same patterns; the order is TABLE's, with new patterns at the end. `added` of the table names
the patterns, and what they were found by.
"""

import json
import sys
from pathlib import Path


def merged_rows(old, new):
    """The rows of `old`, with those of `new` where the first of the same pattern was, or at the end."""
    by_pattern = {}
    for row in new:
        by_pattern.setdefault(row["pattern"], []).append(row)
    replaced = set(by_pattern)
    rows = []
    for row in old:
        if row["pattern"] in replaced:
            rows += by_pattern.pop(row["pattern"], [])
        else:
            rows.append(row)
    return rows + [row for left in by_pattern.values() for row in left]


def main(table_path, new_path):
    table, new = (json.loads(Path(path).read_text(encoding="utf-8")) for path in (table_path, new_path))
    patterns = list(dict.fromkeys(row["pattern"] for row in new["results"]))
    added = [entry | {"patterns": [pattern for pattern in entry["patterns"] if pattern not in patterns]} for entry in table.get("added", [])]
    added.append({"commit": new["commit"], "machine": new["machine"], "patterns": patterns})
    head = {key: value for key, value in table.items() if key not in ("results", "added")}
    head["added"] = [entry for entry in added if entry["patterns"]]
    rows = merged_rows(table["results"], new["results"])
    lines = ",\n".join(json.dumps(row, separators=(",", ":"), ensure_ascii=False) for row in rows)
    Path(table_path).write_text(json.dumps(head, ensure_ascii=False)[:-1] + ',\n"results": [\n' + lines + "\n]}\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
