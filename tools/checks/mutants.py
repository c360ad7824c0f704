#!/usr/bin/env python3
"""Changes one operator, constant or condition of the sources at a time, and names the changes that no unit or property test finds.

usage: mutants.py COUNT [--seed N] [--build FOLDER] [--preset PRESET] [--filter PATTERN] [--files GLOB...] [--seconds N] [--record FILE] [--commit TEXT]

COUNT mutants are drawn from the folders of src below. Each is compiled and tested in a copy of the tree in FOLDER (default: build/mutants), where
ccache and the objects of the one before are used. The unit tests of a mutant's own folder come first, and all others only where these pass: those of
backends are left out, as they take most of the time. --filter, GoogleTest's, says which tests to run in place of both. The seed is printed; with it the same
mutants come again. A mutant that doesn't compile is counted apart, and one whose tests run for TIMEOUT seconds is found. It takes half a minute or
more for each mutant and is no part of CI. The exit code is 0; the survivors are printed as differences, for tests to be written. --record adds the run to
a file, in which somebody then writes of each survivor which test finds it now, or why no test could ("equal ...").
"""

import argparse
import dataclasses
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import gtest_shards

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("ir", "passes", "autodiff", "analysis", "masks", "verification", "planner")
PROGRAMS = ("scoremod_unit_tests", "scoremod_property_tests")
TIMEOUT = 300
# Operators and their changes. They have spaces around them, as clang-format writes them: brackets of templates and references are none.
OPERATORS = {
    " < ": (" <= ", " >= "),
    " <= ": (" < ", " > "),
    " > ": (" >= ", " <= "),
    " >= ": (" > ", " < "),
    " == ": (" != ",),
    " != ": (" == ",),
    " + ": (" - ",),
    " - ": (" + ",),
    " * ": (" / ",),
    " / ": (" * ",),
    " && ": (" || ",),
    " || ": (" && ",),
    " += ": (" -= ",),
    " -= ": (" += ",),
}
_OPERATOR = re.compile("|".join(map(re.escape, sorted(OPERATORS, key=len, reverse=True))))
_CONSTANT = re.compile(r"(?<![\w.'])(?:true|false|\d+)(?![\w.'])")
_CONDITION = re.compile(r"\b(?:if|while) \(((?:[^()]|\([^()]*\))+)\)(?! *\{? *//)")
_DECLARES = re.compile(";| = ")
# Texts of messages and comments change nothing that a test should find; so do assertions of what can't be, and includes.
_LEFT_OUT = re.compile(r'^\s*(?://|#|\*|using |namespace |static_assert|template)|fail_bug|concat\(|"[^"]*"')


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One change: of a file below the root, the text from `begin` to `end` becomes `after`."""

    file: str
    begin: int
    end: int
    before: str
    after: str

    def applied(self, text):
        assert text[self.begin : self.end] == self.before, f"{self.file} has changed since the mutant was drawn"
        return text[: self.begin] + self.after + text[self.end :]

    def shown(self, text):
        """The changed line as a difference."""
        number = text.count("\n", 0, self.begin)
        return f"{self.file}:{number + 1}\n- {text.splitlines()[number].strip()}\n+ {self.applied(text).splitlines()[number].strip()}"


def mutants_of(file, text):
    """All mutants of a source, in their order."""
    found, begin = [], 0
    for line in text.splitlines(keepends=True):
        code = line.split("//")[0]
        if not _LEFT_OUT.search(line):
            found += _mutants_of_line(file, code, begin)
        begin += len(line)
    return found


def _mutants_of_line(file, line, begin):
    def mutant(match, after, group=0):
        return Mutant(file, begin + match.start(group), begin + match.end(group), match.group(group), after)

    for match in _OPERATOR.finditer(line):
        yield from (mutant(match, after) for after in OPERATORS[match.group()])
    for match in _CONSTANT.finditer(line):
        yield mutant(match, {"true": "false", "false": "true"}.get(match.group()) or str(int(match.group()) + 1))
    for match in _CONDITION.finditer(line):
        if not _DECLARES.search(match.group(1)):  # which can't be negated as a whole
            yield mutant(match, f"!({match.group(1)})", 1)


def draw(root, count, seed, globs=()):
    """`count` mutants of the sources, fewer where there are no more, each as likely as any other."""
    files = [path for folder in FOLDERS for path in sorted((root / "src" / folder).rglob("*.cpp"))]
    names = [path.relative_to(root).as_posix() for path in files]
    if globs:
        names = [name for name in names if any(Path(name).match(glob) for glob in globs)]
    every = [mutant for name in names for mutant in mutants_of(name, (root / name).read_text(encoding="utf-8"))]
    return random.Random(seed).sample(every, min(count, len(every)))


class Scratch:
    """A copy of the tree in which mutants are built. tests: GoogleTest's filter of those to run; None of what a mutant asks for."""

    def __init__(self, root, folder, tests=None, programs=PROGRAMS, preset="dev"):
        self.tree, self.build, self.tests, self.programs, self.preset = folder / "tree", folder / "build", tests, programs, preset
        self.tree.mkdir(parents=True, exist_ok=True)
        kept = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True).stdout.decode().split("\0")
        for name in filter(None, kept):
            source, target = root / name, self.tree / name
            if source.is_file() and (not target.is_file() or target.read_bytes() != source.read_bytes()):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)

    def prepare(self):
        """Configures, and builds the tests without a mutant."""
        subprocess.run(["cmake", "--preset", self.preset, "-B", self.build], cwd=self.tree, check=True, stdout=subprocess.DEVNULL)
        if self._compile():
            sys.exit("mutants: the tests don't build without a mutant")
        if not all(self._passes(*each) for each in self._rounds(None)):
            sys.exit("mutants: a test fails without a mutant")

    def _compile(self):
        command = ["cmake", "--build", self.build, "--parallel", str(os.cpu_count()), "--target", *self.programs]
        return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode

    def _rounds(self, mutant):
        """(program, filter) of what is run for a mutant, in this order; None: of the sources as they are."""
        if self.tests is not None:
            return [(program, self.tests) for program in self.programs]
        own = set() if mutant is None else gtest_shards.suites_of(self.tree / "tests/unit" / Path(mutant.file).parts[1])
        others = gtest_shards.without_backends(self.tree)
        return ([(self.programs[0], gtest_shards.filter_of(own))] if own else []) + [(program, others) for program in self.programs]

    def _passes(self, program, tests):
        """Whether all tests of a filter pass in time, in as many processes as there are cores."""
        running = gtest_shards.begin(self.build / "bin" / program, tests, subprocess.DEVNULL)
        end = time.monotonic() + TIMEOUT
        try:
            return not any(each.wait(max(end - time.monotonic(), 0)) for each in running)
        except subprocess.TimeoutExpired:
            return False
        finally:
            for each in running:
                each.kill()

    def outcome(self, mutant):
        """found, survived or "does not compile"."""
        path = self.tree / mutant.file
        text = path.read_text(encoding="utf-8")
        try:
            path.write_text(mutant.applied(text), encoding="utf-8")
            if self._compile():
                return "does not compile"
            return "survived" if all(self._passes(*each) for each in self._rounds(mutant)) else "found"
        finally:
            path.write_text(text, encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "mutants")
    parser.add_argument("--preset", default="dev", help="of CMakePresets.json; dev compiles fast, release may have its objects in ccache")
    parser.add_argument("--filter", help="GoogleTest's filter of the tests to run")
    parser.add_argument("--files", nargs="*", default=(), help="draw from sources that one of these patterns matches")
    parser.add_argument("--seconds", type=float, default=3600, help="begin no mutant after so many")
    parser.add_argument("--record", type=Path, help="add the run to this file")
    parser.add_argument("--commit", default="", help="what the record says of the sources")
    parser.add_argument("--root", type=Path, default=ROOT, help="the tree whose sources are changed in a copy")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    scratch, counts, survivors = Scratch(options.root, options.build, options.filter, preset=options.preset), {}, []
    # They are those of the copy, as somebody may go on with the sources.
    mutants = draw(scratch.tree, options.count, options.seed, options.files)
    scratch.prepare()
    end = time.monotonic() + options.seconds
    tried = []
    for mutant in mutants:
        if time.monotonic() > end:
            break
        outcome = scratch.outcome(mutant)
        tried.append(Path(mutant.file).parts[1])
        counts[outcome] = counts.get(outcome, 0) + 1
        shown = mutant.shown((scratch.tree / mutant.file).read_text(encoding="utf-8"))
        print(f"{outcome}: {shown}", flush=True)
        survivors += [shown] if outcome == "survived" else []
    print(f"seed {options.seed}: " + (", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())) or "no mutants"))
    for shown in survivors:
        print(f"\nsurvived: {shown}")
    if options.record is not None:
        record(options, sorted(set(tried)), counts, survivors)


def record(options, folders, counts, survivors):
    """Adds a run to the record, in which nobody has said yet what became of the survivors."""
    runs = json.loads(options.record.read_text(encoding="utf-8")) if options.record.exists() else []
    run = {"commit": options.commit, "seed": options.seed, "folders": folders, "found": counts.get("found", 0)}
    runs.append({**run, "survived": [{"mutant": shown, "verdict": ""} for shown in survivors]})
    options.record.write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
