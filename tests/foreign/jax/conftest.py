"""The suites that run with JAX and NumPy, which share the dense computation of tests/jax."""

import os
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2] / "jax")]
# Read when JAX starts. Most of the time would be spent on optimizing small dense computations (tests/jax/conftest.py).
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")
