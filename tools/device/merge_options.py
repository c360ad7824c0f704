"""Puts the cells of a run of tools/device/options.sh into the record of all, in place of older ones.

usage: merge_options.py RECORD.json CELLS.jsonl MACHINE COMMIT
"""

import collections
import json
import os
import sys


def merged(old, new, machine, commit):
    """The record's cells, one for each backend, option and modifier, in their order."""
    place = lambda cell: (cell["backend"], cell["option"], cell["modifier"])  # noqa: E731
    cells = {place(cell): cell for cell in old}
    cells.update((place(cell), {**cell, "machine": machine, "commit": commit}) for cell in new)
    return [cells[key] for key in sorted(cells)]


def main(record, lines, machine, commit):
    old = []
    if os.path.exists(record):
        with open(record, encoding="utf-8") as file:
            old = json.load(file)["cells"]
    with open(lines, encoding="utf-8") as file:
        new = [json.loads(line) for line in file]
    cells = merged(old, new, machine, commit)
    with open(record, "w", encoding="utf-8") as file:
        file.write('{"cells": [\n' + ",\n".join(json.dumps(cell) for cell in cells) + "\n]}\n")
    kind = lambda cell: cell["cell"] if cell["cell"] in ("wrong", "error", "nothing") else "refused" if cell["cell"].startswith("`") else "right"  # noqa: E731
    print(f"{len(new)} cells run, {len(cells)} in the record:", dict(collections.Counter(map(kind, new))))


if __name__ == "__main__":
    main(*sys.argv[1:])
