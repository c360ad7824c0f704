"""The Python of docs/python.md and of README.md that needs NumPy alone runs as it stands there, the page's later piece after its first."""

import re
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]


def blocks_of(page):
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


def run(block, page, names):
    exec(compile(block, page, "exec"), names)  # noqa: S102 (it is our own page)
    return names


def test_code_of_the_page_runs():
    first, *later = blocks_of("docs/python.md")
    assert later
    for block in later:
        names = run(block, "docs/python.md", run(first, "docs/python.md", {}))
        gradients = names["gradients"]
        assert all(np.isfinite(array).all() for array in (names["o"], gradients.dq, gradients.d_operands["slopes"]))


def test_code_of_the_readme_runs():
    (block,) = [each for each in blocks_of("README.md") if "import scoremod\n" in each]
    assert np.isfinite(run(block, "README.md", {})["o"]).all()
