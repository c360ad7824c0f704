"""Makes the bindings importable without PYTHONPATH, for `pytest` by hand."""

import os
import secrets
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))


@pytest.fixture
def rng():
    return np.random.default_rng(20240519)


@pytest.fixture
def fresh_seed():
    """A new seed, which a failed test prints."""
    seed = int(os.environ.get("SCOREMOD_TEST_SEED") or secrets.randbits(32))
    print(f"SCOREMOD_TEST_SEED={seed}")
    return seed


@pytest.fixture
def fresh_rng(fresh_seed):
    return np.random.default_rng(fresh_seed)
