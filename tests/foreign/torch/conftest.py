"""The suites that run with PyTorch, which share the dense computation of tests/torch."""

import sys
from pathlib import Path

import pytest
import torch

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2] / "torch")]


@pytest.fixture(autouse=True)
def one_thread():
    """Threads that wait for each other take most of the time of small tensors."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
