#!/usr/bin/env python3
"""Runs the tests of a build that counts branches, and names the branches of the compiler that no test takes and nobody has given a reason for.

usage: coverage.py BUILD [--record FILE] [--commit TEXT] [--seed N] [--programs NAME...]

BUILD is one of the preset `coverage` (./dev coverage makes it). The programs of the tests are run, without tests of backends. Branches
that only an exception takes are left out, and so are those that GCC makes without a condition in the source. Nothing reaches a fail_bug() by design.
The cases of a `switch` are lines of their own. Random tests have the seed 1, or N, so that what they take is the same each time.

untaken_branches.json, beside this file, has the reasons. Each is for one line of a file, by its text, so that it holds where lines above change.
--record writes how many lines and branches of each folder are taken. The exit code is 1 where a test fails, and where a branch is neither taken nor listed.
It is 1, too, where a reason is given for a line that is not there, or whose branches are all taken. So it is where the build counts nothing in a folder.
"""

import argparse
import collections
import dataclasses
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import gtest_shards

ROOT = Path(__file__).resolve().parents[2]
REASONS = Path(__file__).resolve().with_name("untaken_branches.json")
# The folders whose branches the build counts, as CMakeLists.txt lists them.
FOLDERS = tuple(re.search(r"^set\(SCOREMOD_COUNTED_FOLDERS ([^)]+)\)", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8"), re.MULTILINE)[1].split())
PROGRAMS = ("scoremod_unit_tests", "scoremod_golden_tests", "scoremod_property_tests")


@dataclasses.dataclass(frozen=True)
class Line:
    """One line of a source that has code: how many branches it has, and how many of these are taken."""

    file: str
    number: int
    branches: int
    taken: int
    runs: bool


def run_tests(build, programs, seed):
    """Runs the programs with counters of zero, without tests of backends, which count nothing that the others don't; whether all passed."""
    for counters in build.rglob("*.gcda"):
        counters.unlink()
    passed, tests = True, gtest_shards.without_backends(ROOT)
    for name in programs:
        codes = [each.wait() for each in gtest_shards.begin(build / "bin" / name, tests, SCOREMOD_TEST_SEED=seed)]
        passed = passed and not any(codes)
    return passed


def counted(build, root):
    """gcovr's report of a build."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        filters = [argument for name in FOLDERS for argument in ("--filter", f"{root}/src/{name}/")]
        options = ["--exclude-throw-branches", "--exclude-unreachable-branches", "--exclude-noncode-lines", "--merge-lines"]
        command = [Path(sys.executable).with_name("gcovr"), "--root", root, *filters, *options, "--json", report, build / "CMakeFiles/scoremod_objects.dir"]
        subprocess.run(command, check=True)
        return json.loads(report.read_text(encoding="utf-8"))


def lines_of(report, text_of):
    """The Lines of gcovr's report; one for all instances of a template that have the same branches. text_of: gives the text of a line by its file and number."""
    for file in report["files"]:
        instances = collections.defaultdict(list)
        for line in file["lines"]:
            counts = [each["count"] for each in line.get("branches", [])]
            instances[line["line_number"], len(counts)].append([line["count"], *counts])
        for (number, _), counts in instances.items():
            runs, *branches = (max(of_all) > 0 for of_all in zip(*counts, strict=True))
            text = text_of(file["file"], number)
            if "fail_bug(" in text:
                runs, branches = True, []
            if text.startswith("switch ("):
                branches = []
            yield Line(file["file"], number, len(branches), sum(branches), runs)


def untaken(lines, reasons, text_of):
    """(lines that are neither whole nor listed, reasons that nothing needs). text_of gives the text of a Line."""
    needed, open_lines = set(), []
    for line in lines:
        if line.runs and line.taken == line.branches:
            continue
        key = line.file, text_of(line)
        needed.add(key)
        if key not in reasons:
            open_lines.append(line)
    return open_lines, sorted(set(reasons) - needed)


def folders_of(lines, listed):
    """Folder -> how many lines and branches there are, are taken and stand in the list with their reasons."""
    found = {name: collections.Counter() for name in FOLDERS}
    for line in lines:
        counts = found[line.file.split("/")[1]]
        counts["lines"] += 1
        counts["lines_taken"] += line.runs
        counts["branches"] += line.branches
        counts["branches_taken"] += line.taken
        counts["branches_listed"] += line.branches - line.taken if listed(line) else 0
    return {name: dict(counts) for name, counts in found.items()}


def uncounted(folders):
    """The folders of which the report has no line: the build left them out, or they are no longer there."""
    return [name for name, counts in folders.items() if not counts.get("lines")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--commit", default="")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--programs", nargs="+", default=PROGRAMS)
    options = parser.parse_args()
    passed = run_tests(options.build, options.programs, options.seed)
    sources = {}

    def text_at(file, number):
        if file not in sources:
            sources[file] = (ROOT / file).read_text(encoding="utf-8").splitlines()
        return sources[file][number - 1].strip()

    def text_of(line):
        return text_at(line.file, line.number)

    lines = list(lines_of(counted(options.build.resolve(), ROOT), text_at))
    reasons = {(each["file"], each["line"]): each["reason"] for each in json.loads(REASONS.read_text(encoding="utf-8"))}
    open_lines, unneeded = untaken(lines, reasons, text_of)
    for line in open_lines:
        missing = f"{line.branches - line.taken} of {line.branches} branches are not taken" if line.runs else "no test runs it"
        print(f"{line.file}:{line.number}: {missing}: {text_of(line)}")
    for file, text in unneeded:
        print(f"{file}: untaken_branches.json has a reason for a line that is not there, or is taken whole: {text}")
    folders = folders_of(lines, lambda line: (line.file, text_of(line)) in reasons)
    for name, counts in folders.items():
        print(name, counts)
    for name in uncounted(folders):
        print(f"src/{name}: the build counts nothing there, though CMakeLists.txt lists it")
    if options.record is not None:
        options.record.write_text(json.dumps({"commit": options.commit, "folders": folders}, indent=1) + "\n", encoding="utf-8")
    return 0 if passed and not open_lines and not unneeded and not uncounted(folders) else 1


if __name__ == "__main__":
    sys.exit(main())
