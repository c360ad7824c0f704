"""The Python of the pages that needs no framework runs as it stands there."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from page_python import FRAMEWORKS, pages_for, parts_of, parts_of_pages, run_page


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Pages write files into the current folder."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("page", pages_for("numpy"))
def test_a_page_runs(page):
    names = run_page(page, "numpy")
    made = [value for value in names.values() if isinstance(value, np.ndarray) and value.dtype.kind == "f"]
    assert all(np.isfinite(array).all() for array in made)
    if figure := names.get("figure"):
        assert any(axes.get_title().startswith("slopes") for axes in figure.axes)


def test_the_page_of_numpy_has_gradients():
    gradients = run_page("docs/guide/numpy.md", "numpy")["gradients"]
    assert all(np.abs(array).max() > 0 for array in (gradients.dq, gradients.d_operands["slopes"]))


def test_every_page_of_the_guide_that_has_code_has_code_that_runs():
    """C and C++ pages have tests of their own in tests/checks."""
    pages = {page for page in parts_of_pages() if page.startswith("docs/guide/")}
    running = {page for framework in ("numpy", *FRAMEWORKS) for page in pages_for(framework)}
    assert pages - running == {f"docs/guide/{name}.md" for name in ("c", "cpp", "gpus")}


def test_blocks_go_to_their_framework():
    text = "```python\nimport scoremod\n```\n```python\nfrom scoremod.torch import x\n```\n```py\nimport flash_attn\n```\n```python\ny = 1\n```\n"
    assert parts_of(text) == {"numpy": ["import scoremod\n"], "torch": ["from scoremod.torch import x\n", "y = 1\n"]}
