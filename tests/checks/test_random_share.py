"""tools/checks/random_share.py, with programs that answer as GoogleTest's do."""

import json
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


# Output as GoogleTest and sanitizers print it: one test that passes, one that is skipped, and one with a report in each of two forms.
SANITIZED = """#!/bin/sh
ran='[==========] 1 test from 1 test suite ran. (3 ms total)'
case "$1" in
  --gtest_list_tests) printf 'Suite.\\n  Right\\n  Skipped\\n  Wrong\\n' ;;
  *Right) echo "$ran"; echo '[  PASSED  ] 1 test.' ;;
  *Skipped) echo "$ran"; echo '[  SKIPPED ] 1 test, listed below:' ;;
  *Wrong)
    echo '==7==ERROR: AddressSanitizer: heap-use-after-free on address 0x602000000010 at pc 0x55 bp 0x7f sp 0x7e' >&2
    echo 'src/ir/sum.cpp:3:7: runtime error: signed integer overflow: 1 + 2147483647' >&2
    exit 1 ;;
esac
"""


def test_a_run_is_added_to_the_record_with_what_the_program_said(tmp_path):
    program, record = tmp_path / "program", tmp_path / "runs.json"
    program.write_text(SANITIZED, encoding="utf-8")
    program.chmod(0o755)
    code, _ = run(60, "--seed", 3, "--record", record, "--sanitizer", "asan", program)
    assert code == 1
    run(60, "--filter", "Right", "--record", record, "--sanitizer", "asan", program)
    first, second = json.loads(record.read_text(encoding="utf-8"))
    counts = {key: first[key] for key in ("sanitizer", "programs", "seed", "tests", "skipped", "of", "failed")}
    # The test that ended its process did not say that it ran.
    assert counts == {"sanitizer": "asan", "programs": ["program"], "seed": 3, "tests": 2, "skipped": 1, "of": 3, "failed": ["Suite.Wrong"]}
    reports = ["ERROR: AddressSanitizer: heap-use-after-free", "src/ir/sum.cpp:3:7: runtime error: signed integer overflow: 1 + 2147483647"]
    assert first["findings"] == {"Suite.Wrong": reports}
    assert (second["tests"], second["of"], second["failed"], second["findings"], second["filter"]) == (1, 1, [], {}, "Right")
    assert 0 < second["seconds"] < 60 and re.fullmatch(r"[0-9a-f]{8}\+?", second["commit"]) and re.search(r", \d+ cores$", second["machine"])
