"""The Python of docs/guide/torch.md, and README's of PyTorch, runs as it stands there."""

import re
import sys
import types
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


def blocks(text):
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.fixture
def run(monkeypatch):
    """Runs the blocks of a text one after the other, as one module."""

    def all_blocks(text):
        page = types.ModuleType("page")
        monkeypatch.setitem(sys.modules, "page", page)
        for block in blocks(text):
            exec(compile(block, "page", "exec"), page.__dict__)
        return page.__dict__

    return all_blocks


def test_the_page(run):
    pytest.importorskip("transformers")
    names = run((ROOT / "docs" / "guide" / "torch.md").read_text(encoding="utf-8"))
    assert names["slopes"].grad.abs().min() > 0 and all(p.grad is not None for p in names["model"].parameters())


def test_the_readme(run):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    part = readme[readme.index("\n## PyTorch") + 1 :]
    names = run(part[: part.index("\n## ")])
    assert names["slopes"].grad.abs().min() > 0 and torch.isfinite(names["cap"].grad)
