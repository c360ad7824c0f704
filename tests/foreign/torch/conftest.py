"""The suites that run with PyTorch, which share the dense computation of tests/torch."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2] / "torch")]
