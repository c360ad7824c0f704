"""The bindings importable without PYTHONPATH, and the seed of random tests."""

import os
import secrets
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(Path(__file__).resolve().parent)]

SEED = int(os.environ.get("SCOREMOD_TEST_SEED") or secrets.randbelow(2**31))


def pytest_report_header():
    return f"SCOREMOD_TEST_SEED={SEED}, torch {torch.__version__}"


@pytest.fixture
def seed(request):
    """A number of the run's seed and the test's name, which a failed test prints."""
    print(f"SCOREMOD_TEST_SEED={SEED}")
    return SEED + sum(map(ord, request.node.name))


@pytest.fixture
def random(seed):
    return torch.Generator().manual_seed(seed)
