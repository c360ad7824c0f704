"""The Python of docs/guide/numpy.md runs as it stands there, one piece after the other."""

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
    names, seen = {}, 0
    for block in blocks_of("docs/guide/numpy.md"):
        run(block, "docs/guide/numpy.md", names)
        if "gradients = " in block:
            seen += 1
            gradients = names["gradients"]
            assert all(np.isfinite(array).all() for array in (names["o"], gradients.dq, gradients.d_operands["slopes"]))
        if figure := names.pop("figure", None):
            seen += 1
            assert any(axes.get_title().startswith("slopes") for axes in figure.axes)
    assert seen == 3
