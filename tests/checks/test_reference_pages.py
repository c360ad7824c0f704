"""Pages of the reference that nothing writes: their tables have no empty cell, and they name every field that there is."""

import json
import re
from pathlib import Path

import pytest

import scoremod

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"
# Its tables have a gap where nothing was measured.
PAGES = [page for page in sorted(REFERENCE.glob("*.md")) if page.name != "times.md"]
PROBLEM_PAGES = ("problem", "sizes", "sinks_and_dropout", "fp8")


def empty_cells(text):
    """The lines of tables that have a cell without a text."""
    rows = [line for line in re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE).splitlines() if line.startswith("|")]
    return [row for row in rows if any(not cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1])]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_cell_is_empty(page):
    assert empty_cells(page.read_text(encoding="utf-8")) == []


def test_an_empty_cell_is_found():
    assert empty_cells("| a | |\n| --- | --- |\n| `\\|` | b |\n\n```\n| |\n```\n") == ["| a | |"]


def named(*pages):
    """The words in code of pages of the reference."""
    text = "\n".join((REFERENCE / f"{page}.md").read_text(encoding="utf-8") for page in pages)
    return set(re.findall(r"[`\"](?:[\w.]+\.)?(\$?\w+)[`\"]", text))


def test_every_field_of_a_problem_is_described():
    schema = json.loads((REFERENCE / "problem.schema.json").read_text(encoding="utf-8"))
    assert set(schema["properties"]) - named(*PROBLEM_PAGES) == set()
    operand = schema["$defs"]["operand"]["properties"]
    assert set(operand) - named(*PROBLEM_PAGES) == set()


def keys(value):
    """The keys of a JSON value and of all within it, but for those of `problem`, which has a page of its own."""
    if isinstance(value, list):
        return set().union(*map(keys, value))
    if not isinstance(value, dict):
        return set()
    return set(value).union(*(keys(each) for name, each in value.items() if name != "problem"))


def test_every_field_of_an_explanation_is_described():
    program = ["operand slopes: f32 [h]", "value = score - slopes * f32(q_idx - kv_idx)", "keep = q_idx >= kv_idx"]
    explanation = scoremod.explain({"batch": 1, "heads_q": 2, "seq_q": 64, "dim_qk": 16, "dtype": "f32", "backward": True, "program": program})
    found = keys(explanation)
    assert {"mask", "backends", "forward_flops", "remedy"} <= found
    assert found - named("explain") == set()
