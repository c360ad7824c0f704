"""tools/checks/random_share.py, with programs that answer as GoogleTest's do."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "checks" / "random_share.py"
PROGRAM = """#!/bin/sh
case "$1" in
  --gtest_list_tests) printf 'Suite.\\n  First\\n  DISABLED_Off\\nKinds/Typed.\\n  Second/0  # GetParam() = 1\\n  Second/1  # GetParam() = 2\\n' ;;
  --gtest_filter=Suite.First) echo "it is wrong"; echo "$SCOREMOD_CACHE" >>"$0.ran"; exit $(cat "$0.code") ;;
  --gtest_filter=Kinds/Typed.Second/[01]) echo "$1" >>"$0.ran"; sleep 0.2 ;;
  *) exit 9 ;;
esac
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program"
    path.write_text(PROGRAM, encoding="utf-8")
    path.chmod(0o755)
    (tmp_path / "program.code").write_text("0", encoding="utf-8")
    return path


def run(*arguments):
    done = subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], capture_output=True, text=True)
    return done.returncode, done.stdout


def test_all_run_where_there_is_time(program):
    code, said = run(60, "--seed", 3, program)
    assert (code, said) == (0, "seed 3: 3 of 3 tests in 60 s, 0 failed\n")
    ran = (program.parent / "program.ran").read_text(encoding="utf-8").split()
    assert sorted(ran) == ["--gtest_filter=Kinds/Typed.Second/0", "--gtest_filter=Kinds/Typed.Second/1", "off"]


def test_one_that_fails_is_shown(program):
    (program.parent / "program.code").write_text("1", encoding="utf-8")
    code, said = run(60, program)
    assert code == 1 and "it is wrong\n" in said and "FAILED: program --gtest_filter=Suite.First\n" in said
    assert re.search(r"^seed \d+: 3 of 3 tests in 60 s, 1 failed$", said, re.MULTILINE)


def test_time_ends_it_and_none_is_a_failure(program):
    """A build may leave less time than the listing of tests takes: one is run all the same."""
    code, said = run(0.000001, "--jobs", 1, "--filter", "Typed", program)
    assert code == 0 and "1 of 2 tests" in said
    code, said = run(60, "--filter", "Nothing", program)
    assert code == 1 and "0 of 0 tests" in said


def test_the_seed_decides_the_order(program):
    orders = set()
    for seed in (1, 1, 2, 3, 4, 5):
        run(60, "--seed", seed, "--jobs", 1, program)
        orders.add((seed, (program.parent / "program.ran").read_text(encoding="utf-8")))
        (program.parent / "program.ran").unlink()
    assert len({seed for seed, _ in orders}) == len(orders) == 5
    assert len({order for _, order in orders}) > 1
