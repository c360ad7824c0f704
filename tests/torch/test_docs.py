"""The Python of docs/torch.md, and README's of PyTorch, runs as it stands there."""

import re
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]


def blocks(text):
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def run(text):
    namespace = {"__name__": "page"}
    for block in blocks(text):
        exec(compile(block, "page", "exec"), namespace)
    return namespace


def test_the_page():
    names = run((ROOT / "docs" / "torch.md").read_text(encoding="utf-8"))
    assert names["slopes"].grad.abs().min() > 0 and all(p.grad is not None for p in names["model"].parameters())


def test_the_readme():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    part = readme[readme.index("### PyTorch") :]
    names = run(part[: part.index("\n## ")])
    assert names["slopes"].grad.abs().min() > 0 and torch.isfinite(names["cap"].grad)
