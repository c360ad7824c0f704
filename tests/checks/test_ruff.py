"""Ruff's rules hold for Python sources, and ./dev format would change nothing (pyproject.toml has the rules and the format)."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = ROOT / "pyproject.toml"


def ruff(*arguments, folder=ROOT):
    return subprocess.run(
        [sys.executable, "-m", "ruff", *arguments, "--config", SETTINGS, "--no-cache", folder], capture_output=True, text=True, check=False, cwd=ROOT
    )


@pytest.mark.parametrize("command", [("check", "--output-format", "concise"), ("format", "--check")], ids=["rules", "format"])
def test_ruff_finds_nothing(command):
    done = ruff(*command)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "text, command, complaint",
    [
        ("import os\n", "check", "F401"),
        ("def f(x=[]):\n    return x\n", "check", "B006"),
        (f"text = '{'a' * 200}'\n", "check", "E501"),
        ("f(  1)\n", "format", "would be reformatted"),
    ],
)
def test_faults_are_found(tmp_path, text, command, complaint):
    (tmp_path / "faulty.py").write_text(text)
    done = ruff(command, *(["--check"] if command == "format" else []), folder=tmp_path)
    assert done.returncode == 1 and complaint in done.stdout, done.stdout + done.stderr
