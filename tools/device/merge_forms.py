#!/usr/bin/env python3
"""Puts the rows of a run that tried some forms only into a table of forms.

usage: merge_forms.py TABLE.json NEW.json

NEW's rows take the place of TABLE's rows of the same forms; the order is TABLE's, with new forms at the end. `added` of the table names
the forms, and what they were found by.
"""

import json
import sys
from pathlib import Path


def main(table_path, new_path):
    table, new = (json.loads(Path(path).read_text(encoding="utf-8")) for path in (table_path, new_path))
    forms = {row["form"]: [] for row in new["results"]}
    for row in new["results"]:
        forms[row["form"]].append(row)
    added = [entry | {"forms": [form for form in entry["forms"] if form not in forms]} for entry in table.get("added", [])]
    added.append({"commit": new["commit"], "machine": new["machine"], "forms": list(forms)})
    rows = []
    for row in table["results"]:
        rows += forms.pop(row["form"], []) if row["form"] in forms else [row] if row["form"] not in added[-1]["forms"] else []
    for left in forms.values():
        rows += left
    head = {key: value for key, value in table.items() if key not in ("results", "added")}
    head["added"] = [entry for entry in added if entry["forms"]]
    lines = ",\n".join(json.dumps(row, separators=(",", ":"), ensure_ascii=False) for row in rows)
    Path(table_path).write_text(json.dumps(head, ensure_ascii=False)[:-1] + ',\n"results": [\n' + lines + "\n]}\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
