"""Continuous integration's script runs every step, says at its end what it ran, and fails where one failed."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STEPS = [
    "setup",
    "ruff",
    "format",
    "pyright",
    "release",
    "torch-types",
    "public-types",
    "strict-types",
    "no-cudnn",
    "no-cuda",
    "asan",
    "tsan",
    "asan-torch",
    "clang",
    "tidy",
    "fuzz",
    "docs",
]


@pytest.fixture
def ci(tmp_path):
    """Runs a copy of it in a checkout whose programs only say how they were called; `failing` is a command of ./dev that fails."""
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")

    def run(failing="none"):
        for program in ("dev", ".venv/bin/ruff", ".venv/bin/python"):
            path = tmp_path / program
            path.write_text(f'#!/bin/sh\necho "noise"\necho "said: {path.name} $*"\n[ "$*" != "{failing}" ]\n')
            path.chmod(0o755)
        done = subprocess.run([tmp_path / ".ci" / "run"], capture_output=True, text=True, cwd=tmp_path)
        lines = done.stdout.splitlines()
        return done.returncode, lines[lines.index("step           result    time  says") + 1 :]

    return run


def test_the_end_says_what_ran(ci):
    code, lines = ci()
    assert code == 0
    assert [line.split()[:2] for line in lines] == [[step, "passed"] for step in STEPS]
    assert all(re.search(r" \d+ s  said: ", line) for line in lines)
    said = {line.split()[0]: line.split("said: ")[1] for line in lines}
    assert said["release"] == "dev test" and said["no-cuda"] == "dev test no-cuda" and said["docs"] == "dev docs"


def test_a_step_that_fails_ends_in_a_failure_after_all_others(ci):
    code, lines = ci("test no-cudnn")
    assert code == 1
    assert {line.split()[0]: line.split()[1] for line in lines} == {step: "FAILED" if step == "no-cudnn" else "passed" for step in STEPS}


def test_every_command_is_one_of_dev():
    usage = (ROOT / "dev").read_text(encoding="utf-8")
    asked = re.findall(r"\./dev (\w+)", (ROOT / ".ci" / "run").read_text(encoding="utf-8"))
    assert len(asked) > 8 and all(f"\n    {name})" in usage for name in asked)
