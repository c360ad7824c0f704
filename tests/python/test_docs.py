"""The Python of docs/python.md runs as it stands there."""

import re
from pathlib import Path

import numpy as np

PAGE = Path(__file__).resolve().parents[2] / "docs" / "python.md"


def test_code_of_the_page_runs():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 2
    names = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)  # noqa: S102 (it is our own page)
    gradients = names["gradients"]
    assert all(np.isfinite(array).all() for array in (names["o"], gradients.dq, gradients.d_operands["slopes"]))
