#!/usr/bin/env python3
"""Lets a compiler check the public headers, and as many C++ sources as a limited time allows. It makes nothing of them.

usage: clang_syntax.py COMPILE_COMMANDS SECONDS [--seed N] [--jobs N]

COMPILE_COMMANDS is the compile_commands.json of a build that was configured with the compiler. The public headers come first, all of them; then
SECONDS are for the sources of src: those that git's last commits changed come before the others (recent_first.py). It prints the seed, by which the
order comes again, and what the compiler says of each file with an error. The exit code is 1 then.
"""

import argparse
import json
import os
import random
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from recent_first import recent_first

ROOT = Path(__file__).resolve().parents[2]


def commands_of(path):
    """(file, folder, its command with -fsyntax-only) of each source of the library."""
    for entry in json.loads(path.read_text(encoding="utf-8")):
        words = shlex.split(entry["command"]) if "command" in entry else entry["arguments"]
        output = words.index("-o")
        if Path(entry["file"]).is_relative_to(ROOT / "src"):
            yield entry["file"], entry["directory"], [*words[:output], *words[output + 2 :], "-fsyntax-only"]


def headers(compiler):
    """As commands_of(), each public header by itself."""
    for header in sorted((ROOT / "include/scoremod").glob("*.hpp")):
        options = ["-std=c++20", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'include'}"]
        yield str(header), ROOT, [compiler, *options, "-fsyntax-only", "-include", str(header), "-x", "c++", "/dev/null"]


def check(command):
    """The compiler's complaints about a file; "" without errors."""
    name, folder, words = command
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
    return "" if done.returncode == 0 else f"{name}:\n{done.stdout}{done.stderr}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commands", type=Path)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    commands = {each[0]: each for each in commands_of(options.commands)}
    if not commands:
        sys.exit(f"expected sources of src in {options.commands}, found none")
    ordered, recent = recent_first(commands, ROOT, options.seed)
    sources = [commands[each] for each in ordered]
    compiler = sources[0][2][0]
    first = list(headers(compiler))
    with ThreadPoolExecutor(options.jobs) as threads:
        complaints = list(threads.map(check, first))
        end = time.monotonic() + options.seconds
        complaints += threads.map(lambda each: check(each) if time.monotonic() < end else None, sources)
    checked, failed = [each for each in complaints if each is not None], list(filter(None, complaints))
    print("\n".join(failed))
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    count = f"{len(first)} headers and {len(checked) - len(first)} of {len(sources)} sources, {recent} of which changed lately"
    print(f"{version}: {count}, seed {options.seed}, {len(failed)} with errors")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
