#!/usr/bin/env python3
"""Runs clang-tidy on sources.

usage: tidy.py BUILD_FOLDER [--seconds N] [--seed N] [--jobs N] [FILES]

BUILD_FOLDER has a compile_commands.json of clang. Without FILES it checks every source that is compiled there; with --seconds as many as begin in that
time: those that git's last commits changed come first (recent_first.py). It prints the files, each complaint once, and the seed, by which the order
comes again. The exit code is 1 where clang-tidy complains. The naming rules alone take a fraction of the time, and so are part of the tests
(names.py).
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import names
from recent_first import recent_first

ROOT = names.ROOT
# A complaint begins here; its notes follow it.
COMPLAINT = re.compile(r"^(?=\S+:\d+:\d+: (?:error|warning): )", re.MULTILINE)


def sources_of(build):
    """The sources below ROOT that a build compiles."""
    entries = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    paths = {Path(each["directory"], each["file"]).resolve() for each in entries}
    return [path for path in paths if path.is_relative_to(ROOT) and not path.is_relative_to(build.resolve())]


def check(path, build):
    """clang-tidy's complaints about a source; "" without one."""
    # The count of hidden warnings on stderr is of no use.
    done = subprocess.run([names.CLANG_TIDY, "-p", build, "--quiet", path], capture_output=True, text=True, errors="replace", check=False)
    return "" if done.returncode == 0 else done.stdout or done.stderr


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    return parser.parse_intermixed_args()


def main():
    options = arguments()
    version = names.pinned_version()
    if not names.is_there(version):
        print(f"skipped: clang-tidy {version} is not there; ./dev setup installs it")
        return names.SKIPPED
    files, recent = (options.files, 0) if options.files else recent_first(sources_of(options.build), ROOT, options.seed)
    if not files:
        sys.exit(f"expected sources in {options.build / 'compile_commands.json'}, found none")
    end = time.monotonic() + (options.seconds or float("inf"))

    def in_time(path):
        return check(path, options.build) if time.monotonic() < end else None

    checked, failed, seen = 0, 0, set()
    with ThreadPoolExecutor(options.jobs) as threads:
        for path, said in zip(files, threads.map(in_time, files)):
            if said is None:
                break
            checked, failed = checked + 1, failed + bool(said)
            print(os.path.relpath(path, ROOT), flush=True)
            # A header's complaints come once for each source that includes it.
            new = [each for each in COMPLAINT.split(said) if each and each not in seen]
            seen.update(new)
            print("".join(new), end="")
    print(f"clang-tidy {version}: {checked} of {len(files)} sources, {recent} of which changed lately, seed {options.seed}, {failed} with complaints")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
