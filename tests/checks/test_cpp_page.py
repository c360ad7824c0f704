"""The program of docs/guide/cpp.md is built and run as a user would, and the pages of the interfaces name all that is public."""

import ast
import re
import subprocess

import pytest
from native_page import ROOT, blocks_of, build

PAGE = "docs/guide/cpp.md"


def names_in_tables(page):
    """The words in code in the first cells of a page's tables."""
    rows = [line.split("|")[1] for line in (ROOT / page).read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([\w.]+)`", row)}


def test_the_program_runs(tmp_path):
    done = subprocess.run([build(tmp_path, blocks_of(PAGE, "cpp")[0])], capture_output=True, text=True, check=True)
    # Every row of v is 0.3, whatever the weights.
    assert float(re.search(r"o\[0\] (\S+),", done.stdout)[1]) == pytest.approx(0.3, rel=1e-5)


def test_every_header_is_in_the_table():
    headers = {path.name for path in (ROOT / "include" / "scoremod").glob("*.hpp")} - {"export.hpp"}
    assert {name for name in names_in_tables("docs/reference/cpp_api.md") if name.endswith(".hpp")} == headers


def test_every_function_of_c_is_on_its_page():
    header = (ROOT / "include/scoremod/c_api.h").read_text(encoding="utf-8")
    functions = set(re.findall(r"^SCOREMOD_C_API[^;(]*?(scoremod_\w+)\(", header, re.MULTILINE))
    assert len(functions) > 20 and names_in_tables("docs/reference/c_api.md") - {"scoremod_status"} == functions


def test_every_public_name_of_python_is_on_its_page():
    listed = names_in_tables("docs/reference/python_api.md")
    for folder in (".", "jax", "torch"):
        tree = ast.parse((ROOT / "python/scoremod" / folder / "__init__.py").read_text(encoding="utf-8"))
        (names,) = [ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "__all__"]
        assert set(names) <= listed, folder
