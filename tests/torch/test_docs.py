"""The PyTorch of the pages runs as it stands there."""

import socket
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from page_python import pages_for, parts_of_pages, run_page


@pytest.fixture
def one_process(monkeypatch):
    """The variables that torchrun sets, for a single process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("page", pages_for("torch"))
def test_a_page_runs(page, one_process):
    if any("import transformers" in block for block in parts_of_pages()[page]["torch"]):
        pytest.importorskip("transformers")
    names = run_page(page, "torch")
    made = [value for value in names.values() if isinstance(value, torch.Tensor) and value.is_floating_point()]
    assert made and all(torch.isfinite(value.float()).all() for value in made)


def test_the_page_of_pytorch_has_gradients(one_process):
    pytest.importorskip("transformers")
    names = run_page("docs/guide/torch.md", "torch")
    assert names["slopes"].grad.abs().min() > 0 and all(p.grad is not None for p in names["model"].parameters())


def test_the_readme_has_gradients():
    names = run_page("README.md", "torch")
    assert names["slopes"].grad.abs().min() > 0 and torch.isfinite(names["cap"].grad)
