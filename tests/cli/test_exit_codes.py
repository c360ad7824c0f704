"""The exit codes that no good build gives: with faults planted in the place of the library's check()."""

import json
import os
import subprocess

import pytest

from built_command import find_command

PROBLEM = json.dumps({"batch": 1, "heads_q": 1, "seq_q": 4, "dim_qk": 4})


def check_with(faulty_library, fault, *arguments):
    environment = {**os.environ, "LD_PRELOAD": str(faulty_library), "SCOREMOD_TEST_FAULT": fault}
    return subprocess.run([find_command(), "check", "-", *arguments], input=PROBLEM, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    "fault, code, words",
    [
        ("none", 0, "passed"),
        ("over", 1, "WRONG"),
        ("memory_written", 1, "memory: q was written"),
        ("unsupported", 3, "scoremod: unsupported: no backend: planted reason"),
        ("environment", 4, "scoremod: environment: planted"),
        ("memory", 4, "scoremod: environment: the memory"),
        ("threads", 4, "Resource temporarily unavailable; raise its limit"),
        ("bug", 5, "scoremod: bug: planted"),
        ("surprise", 5, "scoremod: bug: planted; please report it"),
    ],
)
def test_each_fault_has_its_exit_code(faulty_library, fault, code, words):
    done = check_with(faulty_library, fault)
    assert done.returncode == code, done
    assert words in (done.stdout if code <= 1 else done.stderr)
    assert code > 1 or done.stderr == ""


def test_a_failed_check_says_so_in_json(faulty_library):
    report = json.loads(check_with(faulty_library, "over", "--json").stdout)
    assert report["passed"] is False
    output = report["outputs"][0]
    assert (output["passed"], output["l2"]["error"], output["l2"]["tolerance"]) == (False, 3, 2.5)
