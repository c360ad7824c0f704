"""docs/guide/cpp.md: its program is built and run as a user would, and its table has every public header."""

import re
import subprocess

import pytest
from native_page import ROOT, blocks_of, build

PAGE = "docs/guide/cpp.md"


def test_the_program_runs(tmp_path):
    done = subprocess.run([build(tmp_path, blocks_of(PAGE, "cpp")[0])], capture_output=True, text=True, check=True)
    # Every row of v is 0.3, whatever the weights.
    assert float(re.search(r"o\[0\] (\S+),", done.stdout)[1]) == pytest.approx(0.3, rel=1e-5)


def test_every_header_is_in_the_table():
    headers = {path.name for path in (ROOT / "include" / "scoremod").glob("*.hpp")} - {"export.hpp"}
    rows = [line.split("|")[1] for line in (ROOT / PAGE).read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`(\w+\.hpp)`", row)} == headers
