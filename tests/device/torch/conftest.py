"""Tests of scoremod.torch on NVIDIA GPUs; skipped where there is none."""

import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[3]
# The bindings, and the CPU tests' modifiers, dense computation and fixtures.
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "torch")]
from counted_compiles import compiles, nothing_compiled  # noqa: E402, F401 (fixtures)


def pytest_collection_modifyitems(items):
    if not torch.cuda.is_available():
        for item in items:
            if Path(__file__).parent in Path(item.path).parents:
                item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU"))


@pytest.fixture
def random():
    seed = torch.seed() % 2**31
    print(f"torch.Generator().manual_seed({seed})")
    return torch.Generator().manual_seed(seed)
