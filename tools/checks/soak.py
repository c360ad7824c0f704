"""Repeats all random tests, each time with a new seed, until a time is up: ./dev soak.

usage: soak.py MINUTES --venv PYTHON --torch PYTHON [PROGRAM...]

Three kinds run at once: the tests of pytest in either environment (soak_plugin.py), and those of GoogleTest programs, a process for each test and
seed. Each failure is printed with the command that repeats it. The exit code is 1 where there was one.
"""

import argparse
import os
import random
import secrets
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from random_share import run, tests_of
from soak_plugin import MOST_FAILURES, VARIABLE

# A test that has begun runs to its end, for so long: three kinds share the cores, and the longest test of C++ took 300 s beside others' work.
LAST_TEST_S = 600
FOLDERS = {"venv": ("tests/python", "tests/cli", "tests/jax", "tests/foreign/jax"), "torch": ("tests/torch", "tests/foreign/torch")}


def soak_python(python, folders, seconds):
    """Whether all tests of the folders pass with every seed."""
    tools = str(Path(__file__).resolve().parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), tools]))}
    with tempfile.TemporaryDirectory() as place:
        current = Path(place) / "current"
        options = ["-p", "soak_plugin", "-p", "no:cacheprovider", "-q", "--tb=short", f"--soak={seconds}", f"--soak-current={current}"]
        try:
            code = subprocess.run([python, "-m", "pytest", *options, *folders], env=environment, timeout=seconds + LAST_TEST_S).returncode
        except subprocess.TimeoutExpired:
            code = None
        # pytest ends with 1 where a test failed, which it has said; a process that died could not.
        if code not in (0, 1):
            ended = f"still ran after {LAST_TEST_S} s" if code is None else f"ended the process with {code}"
            print(f"FAILED, it {ended}: {current.read_text(encoding='utf-8') if current.exists() else python}", flush=True)
    return code == 0


class Programs:
    """Tests of GoogleTest programs. One that has drawn its seed says so; others are left out once they have run."""

    def __init__(self, programs):
        self.tests = [(program.resolve(), name) for program in programs for name in tests_of(program, "")]
        self.failures = dict.fromkeys(self.tests, 0)
        self.runs, self.seeded = 0, set()

    def run(self, test):
        seed = secrets.randbelow(2**31)
        output, passed = run(*test, {VARIABLE: str(seed)}, LAST_TEST_S)
        self.runs += 1
        if f"{VARIABLE}={seed}" in output:
            self.seeded.add(test)
        if not passed:
            self.failures[test] += 1
            print(f"{output}\nFAILED: {VARIABLE}={seed} {test[0]} --gtest_filter={test[1]}", flush=True)

    def soak(self, seconds):
        """Whether all pass with every seed."""
        end, tests = time.monotonic() + seconds, self.tests
        while tests and (self.runs == 0 or time.monotonic() < end):
            for test in random.sample(tests, len(tests)):
                if self.runs > 0 and time.monotonic() >= end:
                    break
                self.run(test)
            else:
                tests = [test for test in tests if test in self.seeded and self.failures[test] < MOST_FAILURES]
        failed = sum(self.failures.values())
        print(f"{self.runs} runs of {len(self.seeded)} seeded tests of C++ in {seconds:g} s, {failed} failed", flush=True)
        return failed == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("minutes", type=float)
    for kind, folders in FOLDERS.items():
        parser.add_argument(f"--{kind}", metavar="PYTHON", help=f"the Python that runs {', '.join(folders)}")
    parser.add_argument("programs", nargs="*", type=Path)
    # ./dev soak names the programs last: parse_args() of Python 3.11 has given PROGRAM nothing once it comes to an option.
    options = parser.parse_intermixed_args()
    seconds = options.minutes * 60
    with ThreadPoolExecutor() as pool:
        kinds = [pool.submit(soak_python, getattr(options, kind), FOLDERS[kind], seconds) for kind in FOLDERS if getattr(options, kind)]
        if options.programs:
            kinds.append(pool.submit(Programs(options.programs).soak, seconds))
        return 0 if all(kind.result() for kind in kinds) else 1


if __name__ == "__main__":
    sys.exit(main())
