#!/usr/bin/env python3
"""usage: finds_changes_test.py SCOREMOD_CUDNN DEVICES TABLES

Changes one answer in a copy of the committed tables and expects `scoremod_cudnn accept` to fail and to name it; exits 77
where that is skipped.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

SKIPPED = 77
CELL = ("causal", "forward", "sm_90")


def ask(command, devices, tables):
    arguments = [command, "accept", "--devices", devices, "--tables", tables, "--modifier", CELL[0], "--device", "h200"]
    return subprocess.run(arguments, capture_output=True, text=True, check=False)


def main():
    command, devices, tables = sys.argv[1:]
    unchanged = ask(command, devices, tables)
    if unchanged.returncode == SKIPPED:
        print(unchanged.stderr)
        return SKIPPED
    assert unchanged.returncode == 0, unchanged.stdout + unchanged.stderr
    with tempfile.TemporaryDirectory() as folder:
        for path in Path(tables).glob("*.json"):
            table = json.loads(path.read_text())
            for row in table["results"]:
                if (row["modifier"], row["direction"], row["architecture"]) == CELL:
                    row["verdict"] = "refused"
            (Path(folder) / path.name).write_text(json.dumps(table))
        changed = ask(command, devices, folder)
    assert changed.returncode == 1, changed.stdout + changed.stderr
    assert "causal forward sm_90:\n  was refused" in changed.stdout, changed.stdout
    assert "1 differ" in changed.stdout, changed.stdout
    return 0


if __name__ == "__main__":
    sys.exit(main())
