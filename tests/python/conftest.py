"""Makes the bindings importable without PYTHONPATH, for `pytest` by hand."""

import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))


@pytest.fixture
def rng():
    return np.random.default_rng(20240519)
