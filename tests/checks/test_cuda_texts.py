"""Each .cuh file of src, which becomes text of generated kernels, is well-formed by itself."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXTS = sorted((ROOT / "src").rglob("*.cuh"))
COMPILER = os.environ.get("CXX") or shutil.which("c++") or "g++"
COMMAND = [COMPILER, "-std=c++17", "-fsyntax-only", "-w", "-x", "c++", f"-I{ROOT / 'src'}", "-include", str(ROOT / "tests/checks/cuda_declarations.hpp")]


def compiled(file):
    return subprocess.run([*COMMAND, str(file)], capture_output=True, text=True)


@pytest.mark.parametrize("file", TEXTS, ids=lambda file: file.name)
def test_it_compiles_alone(file):
    """For a host compiler that has CUDA's names. tests/device compiles what becomes of the files with NVRTC, where that is."""
    done = compiled(file)
    assert done.returncode == 0, done.stderr


def test_a_fault_is_seen(tmp_path):
    wrong = tmp_path / "wrong.cuh"
    wrong.write_text('#include "backend/cuda/operand_gradients/gradient_prelude.cuh"\n__device__ int wrong() { return undeclared; }\n')
    assert "undeclared" in compiled(wrong).stderr


def test_there_are_some():
    assert {"program_prelude.cuh", "compute.cuh", "store_gradient.cuh"} <= {file.name for file in TEXTS}
