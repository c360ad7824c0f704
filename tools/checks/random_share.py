"""Runs tests of GoogleTest programs in random order, as many as a limited time allows.

usage: random_share.py SECONDS [--seed N] [--filter PATTERN] [--jobs N] [--record FILE --sanitizer NAME] PROGRAM...

For builds in which all tests take too long, such as those with sanitizers: runs with different seeds come to all of them in time. Each test is a
process. It prints the seed, by which the order comes again, and the output of each test that fails. The exit code is 1 where one fails, or where
there was none to run. The first test runs however short the time is. A test that has begun runs to its end, for at most TIMEOUT seconds.
--record adds the run to a file: the counts that the programs print, what failed, and each report of a sanitizer.
"""

import argparse
import datetime
import json
import os
import platform
import random
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TIMEOUT = 300
ROOT = Path(__file__).resolve().parents[2]
_RAN = re.compile(r"^\[=+\] (\d+) tests? from \d+ test suites? ran", re.MULTILINE)
_SKIPPED = re.compile(r"^\[  SKIPPED \] (\d+) tests?, listed below", re.MULTILINE)
_REPORT = re.compile(r"(?:ERROR|WARNING): \w+Sanitizer: [^(\n]*|\S+: runtime error: [^\n]*")


def tests_of(program, pattern):
    """The names of a program's tests, but for disabled ones."""
    listed = subprocess.run([program, "--gtest_list_tests"], capture_output=True, text=True, check=True).stdout
    names, suite = [], ""
    for line in listed.splitlines():
        name = line.split("#")[0].rstrip()
        if name and not name.startswith(" "):
            suite = name
        elif name:
            names.append(suite + name.strip())
    return [name for name in names if "DISABLED_" not in name and re.search(pattern, name)]


def run(program, name, variables=None, timeout=TIMEOUT):
    """The test's output, and whether it passed within `timeout` seconds. variables: those of the environment that it has beside this process's."""
    # A test depends on no file that another program has left in the user's cache.
    environment = {**os.environ, "SCOREMOD_CACHE": "off", **(variables or {})}
    try:
        done = subprocess.run([program, f"--gtest_filter={name}"], capture_output=True, text=True, errors="replace", timeout=timeout, env=environment)
    except subprocess.TimeoutExpired as late:
        return f"{(late.stdout or b'').decode(errors='replace')}\nstill running after {timeout} s", False
    return done.stdout + done.stderr, done.returncode == 0


def reports_of(output):
    """The reports of sanitizers in a test's output, without addresses, which are others each time."""
    return sorted({re.sub(r"\s*(?:on|at)?\s*(?:unknown )?(?:address )?0x[0-9a-f]+.*", "", report).strip() for report in _REPORT.findall(output)})


def machine():
    """The processor and how many of its cores there are."""
    cpu = Path("/proc/cpuinfo")
    named = re.search(r"^model name\s*: (.*)", cpu.read_text(encoding="utf-8"), re.MULTILINE) if cpu.exists() else None
    return f"{named[1] if named else platform.machine()}, {os.cpu_count()} cores"


def commit():
    """That of the sources, with a + where they have changed since."""
    git = lambda *arguments: subprocess.run(["git", *arguments], capture_output=True, text=True, check=False, cwd=ROOT).stdout.strip()  # noqa: E731
    return git("rev-parse", "--short=8", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")


def record(options, tests, outputs, failed, seconds):
    """Adds a run to options.record. outputs: those of the tests that ran, by (program, name)."""
    runs = json.loads(options.record.read_text(encoding="utf-8")) if options.record.exists() else []
    counted = lambda pattern: sum(int(count) for output in outputs.values() for count in pattern.findall(output))  # noqa: E731
    run = {
        "sanitizer": options.sanitizer,
        "programs": [program.name for program in options.programs],
        "filter": options.filter,
        "seed": options.seed,
        "tests": counted(_RAN),
        "skipped": counted(_SKIPPED),
        "of": len(tests),
        "seconds": round(seconds, 3),
        "failed": sorted(failed),
        "findings": {name: reports for (_, name), output in sorted(outputs.items()) if (reports := reports_of(output))},
        "machine": machine(),
        "commit": commit(),
        "date": datetime.date.today().isoformat(),
    }
    options.record.write_text(json.dumps([*runs, run], indent=1) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("seconds", type=float)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--filter", default="", help="run only tests whose names this regular expression finds")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--record", type=Path, help="add the run to this file")
    parser.add_argument("--sanitizer", default="", help="what the record says of the programs' build")
    parser.add_argument("programs", nargs="+", type=Path)
    options = parser.parse_args()
    begin = time.monotonic()
    end = begin + options.seconds
    tests = [(program.resolve(), name) for program in options.programs for name in tests_of(program, options.filter)]
    random.Random(options.seed).shuffle(tests)

    failed, outputs = [], {}

    def run_in_time(test):
        if test is not tests[0] and time.monotonic() > end:
            return 0
        output, passed = run(*test)
        outputs[test] = output
        if not passed:
            failed.append(test[1])
            print(f"{output}\nFAILED: {test[0].name} --gtest_filter={test[1]}", flush=True)
        return 1

    with ThreadPoolExecutor(max(options.jobs, 1)) as pool:
        done = sum(pool.map(run_in_time, tests))
    if options.record is not None:
        record(options, tests, outputs, failed, time.monotonic() - begin)
    print(f"seed {options.seed}: {done} of {len(tests)} tests in {options.seconds:g} s, {len(failed)} failed")
    return 1 if failed or not tests else 0


if __name__ == "__main__":
    sys.exit(main())
