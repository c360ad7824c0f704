"""Tests of scoremod.jax on NVIDIA GPUs; skipped where there is none. Run alone: pytest tests/device/jax (the CPU tests choose the CPU)."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
# The bindings, and the CPU tests' modifiers and dense computation.
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "jax")]
