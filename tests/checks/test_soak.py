"""tools/checks/soak.py finds what fails with few seeds, and says what repeats it."""

import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools" / "checks"
CONFTEST = """
import os, secrets, pytest
SEED = int(os.environ.get("SCOREMOD_TEST_SEED") or secrets.randbelow(2**31))

@pytest.fixture
def seed(request):
    return SEED
"""
OWN_SEED = """
import os, secrets, pytest
SEED = int(os.environ.get("SCOREMOD_TEST_SEED") or secrets.randbelow(2**31))

@pytest.fixture(scope="module")
def shared():
    return SEED

def drawn():
    return SEED
"""


@pytest.fixture
def soak(tmp_path):
    """Soaks files of tests/python: soak(name=text, ...) -> the exit code and the lines. It ends early where all tests fail often."""
    folder = tmp_path / "tests" / "python"
    folder.mkdir(parents=True)
    (tmp_path / "tests/cli").mkdir()
    for other in ("tests/jax", "tests/foreign/jax"):
        (tmp_path / other).mkdir(parents=True)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = once_a_process(reason)\n", encoding="utf-8")

    def run(*programs, minutes=5, **files):
        for name, text in files.items():
            (folder / f"{name}.py").write_text(textwrap.dedent(text), encoding="utf-8")
        python = ["--venv", sys.executable] if files else []
        command = [sys.executable, TOOLS / "soak.py", str(minutes), *python, *programs]
        environment = {name: value for name, value in os.environ.items() if name != "SCOREMOD_TEST_SEED"}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    run.folder = tmp_path
    return run


def test_one_seed_in_five_is_found_and_repeated(soak):
    planted = "def test_planted(seed):\n    assert seed % 5 != 3\n"
    code, said = soak(conftest=CONFTEST, test_some=planted)
    assert code == 1
    commands = re.findall(r"^FAILED: (.*)$", said, re.MULTILINE)
    assert len(commands) == 3, said  # a test leaves after so many
    assert len({re.search(r"SCOREMOD_TEST_SEED=(\d+)", command)[1] for command in commands}) == 3
    assert all("test_planted" in command for command in commands)
    again = subprocess.run(commands[0], shell=True, cwd=soak.folder, capture_output=True, text=True)
    assert again.returncode == 1 and "1 failed" in again.stdout
    right = re.sub(r"SCOREMOD_TEST_SEED=\d+", "SCOREMOD_TEST_SEED=5", commands[0])
    assert subprocess.run(right, shell=True, cwd=soak.folder, capture_output=True).returncode == 0


def test_each_way_to_read_a_seed_is_seen_and_others_are_left_out(soak):
    tests = """
def note(name, seed):
    with open("ran", "a") as file:
        file.write(f"{name} {seed}\\n")
    raise AssertionError

def test_by_a_function():
    note("function", drawn())

def test_by_a_shared_fixture(shared):
    note("shared" if shared == SEED else "other", shared)

def test_by_the_variable():
    note("variable", os.environ["SCOREMOD_TEST_SEED"])

def test_without():
    note("without", 0)

@pytest.mark.once_a_process("counts")
def test_marked():
    note("marked", SEED)
"""
    code, said = soak(test_other=OWN_SEED + tests)
    assert code == 1 and re.search(r"^9 runs of 3 tests in 300 s, 9 failed$", said, re.MULTILINE)
    ran = [line.split() for line in (soak.folder / "ran").read_text(encoding="utf-8").splitlines()]
    assert {name for name, _ in ran} == {"function", "shared", "variable"}
    for name in ("function", "shared", "variable"):
        assert len({seed for each, seed in ran if each == name}) == 3


def test_a_process_that_dies_is_a_failure_that_names_its_test(soak):
    code, said = soak(test_other=OWN_SEED + "def test_dies():\n    drawn()\n    os.kill(os.getpid(), 9)\n")
    (command,) = re.findall(r"^FAILED, it ended the process with -9: (.*)$", said, re.MULTILINE)
    assert code == 1 and "test_other.py::test_dies" in shlex.split(command)[-1]


def test_none_collected_is_a_failure(soak):
    assert soak(test_other="def test_without():\n    pass\n")[0] == 1


@pytest.fixture
def program(soak):
    """A program with a seeded test that fails with one seed in five, and a test that passes; each writes its name into the file "ran"."""
    program = soak.folder / "program"
    program.write_text(
        """#!/bin/sh
case "$1" in
  --gtest_list_tests) printf 'Suite.\\n  Seeded\\n  Fixed\\n' ;;
  *Seeded) echo "SCOREMOD_TEST_SEED=$SCOREMOD_TEST_SEED"; echo seeded >>ran; [ $((SCOREMOD_TEST_SEED % 5)) != 3 ] ;;
  *Fixed) echo fixed >>ran ;;
esac
""",
        encoding="utf-8",
    )
    program.chmod(0o755)
    return str(program)


def test_seeded_tests_of_programs_are_repeated(soak, program):
    code, said = soak(program)
    assert code == 1 and "of 1 seeded tests of C++ in 300 s, 3 failed" in said
    ran = (soak.folder / "ran").read_text(encoding="utf-8").split()
    assert ran.count("fixed") == 1 and ran.count("seeded") > 3
    command = re.search(r"^FAILED: (.*)$", said, re.MULTILINE)[1]
    assert subprocess.run(command, shell=True, cwd=soak.folder, capture_output=True).returncode == 1


def test_programs_are_repeated_beside_tests_of_python(soak, program):
    code, said = soak(program, conftest=CONFTEST, test_some="def test_planted(seed):\n    assert seed < 0\n")
    assert code == 1 and "of 1 seeded tests of C++ in 300 s, 3 failed" in said
    assert "3 runs of 1 tests in 300 s, 3 failed" in said
