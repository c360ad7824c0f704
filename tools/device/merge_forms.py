#!/usr/bin/env python3
"""Puts the rows of a run that tried some forms only into a table of forms.

usage: merge_forms.py TABLE.json NEW.json

NEW's rows take the place of TABLE's rows of the same forms; the order is TABLE's, with new forms at the end. `added` of the table names
the forms, and what they were found by.
"""

import json
import sys
from pathlib import Path


def merged_rows(old, new):
    """The rows of `old`, with those of `new` where the first of the same form was, or at the end."""
    by_form = {}
    for row in new:
        by_form.setdefault(row["form"], []).append(row)
    replaced = set(by_form)
    rows = []
    for row in old:
        if row["form"] in replaced:
            rows += by_form.pop(row["form"], [])
        else:
            rows.append(row)
    return rows + [row for left in by_form.values() for row in left]


def main(table_path, new_path):
    table, new = (json.loads(Path(path).read_text(encoding="utf-8")) for path in (table_path, new_path))
    forms = list(dict.fromkeys(row["form"] for row in new["results"]))
    added = [entry | {"forms": [form for form in entry["forms"] if form not in forms]} for entry in table.get("added", [])]
    added.append({"commit": new["commit"], "machine": new["machine"], "forms": forms})
    head = {key: value for key, value in table.items() if key not in ("results", "added")}
    head["added"] = [entry for entry in added if entry["forms"]]
    rows = merged_rows(table["results"], new["results"])
    lines = ",\n".join(json.dumps(row, separators=(",", ":"), ensure_ascii=False) for row in rows)
    Path(table_path).write_text(json.dumps(head, ensure_ascii=False)[:-1] + ',\n"results": [\n' + lines + "\n]}\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
