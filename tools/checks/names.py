"""Holds the names in the sources to the rules of .clang-tidy.

usage: names.py [--seconds N] BUILD_FOLDER [FILES]

Runs clang-tidy's naming rules alone, on FILES or on every source of the library, the tools, the benchmark and the examples that
BUILD_FOLDER's compile_commands.json knows how to compile. Most of its time goes to the standard library's headers, so sources
that are compiled alike are read several at once, as one source that includes them. Where they don't go together (two have
something of their own with the same name), those that don't are read by themselves.

With --seconds, sources that git's last commits changed come first, then others at random, until the time is over: a name is
wrong from the commit that brings it.
"""

import argparse
import json
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from recent_first import recent_first

ROOT = Path(__file__).resolve().parents[2]
CLANG_TIDY = ROOT / ".venv" / "bin" / "clang-tidy"
FOLDERS = ("src", "tools", "bench", "examples")
SKIPPED = 77
# Sources to a lot. More save little, and more often have names in common.
LOT = 16
# A macro means something to what is included after it, and there is one main().
ALONE = re.compile(r"^\s*#\s*define\b|^int main\(", re.MULTILINE)


def pinned_version():
    return re.search(r"^clang-tidy==(\S+)", (ROOT / "requirements.in").read_text(encoding="utf-8"), re.MULTILINE)[1]


def is_there(version):
    try:
        done = subprocess.run([CLANG_TIDY, "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return False
    return f"version {version}" in done.stdout


def flags_of(build_folder):
    """Each source, with the flags it is compiled with: {path: (folder, flag, ...)}; where it is compiled twice, the first."""
    found = {}
    for entry in json.loads((build_folder / "compile_commands.json").read_text(encoding="utf-8")):
        path = Path(entry["directory"], entry["file"]).resolve()
        words = shlex.split(entry["command"])
        # Behind the compiler, which a program that keeps objects may start.
        words = words[1 + max((at + 1 for at, word in enumerate(words) if Path(word).name == "ccache"), default=0) :]
        if "-o" in words:
            del words[words.index("-o") : words.index("-o") + 2]
        # Warnings are the compiler's, of which clang has others.
        flags = [word for word in words if word not in ("-c", "-Werror", entry["file"])]
        found.setdefault(path, (entry["directory"], *flags))
    return found


def lots_of(files, flags):
    """Lists of sources that are read at once: of C++, and compiled alike."""
    alike = {}
    for path in files:
        alone = path.suffix == ".c" or ALONE.search(path.read_text(encoding="utf-8"))
        alike.setdefault((flags[path], path if alone else None), []).append(path)
    # Neighbours are more often written alike, and so have more names in common, than files far apart.
    return [lot for paths in alike.values() for lot in dealt(sorted(paths))]


def dealt(paths):
    count = -(-len(paths) // LOT)
    return [paths[at::count] for at in range(count)]


def read(lot, flags, folder):
    """clang-tidy's output for the sources of a lot, and the sources that it failed to parse."""
    source = lot[0]
    if len(lot) > 1:
        source = Path(tempfile.mkstemp(dir=folder, suffix=".cpp")[1])
        source.write_text("".join(f'#include "{path}"\n' for path in lot), encoding="utf-8")
    place, *options = flags[lot[0]]
    own = "^(" + "|".join([re.escape(str(ROOT)) + f"/(include|{'|'.join(FOLDERS)})/", *(re.escape(str(path)) + "$" for path in lot)]) + ")"
    said = subprocess.run(
        [
            CLANG_TIDY,
            "--quiet",
            "--checks=-*,readability-identifier-naming",
            "--warnings-as-errors=*",
            f"--header-filter={own}",
            source,
            "--",
            *options,
            "-ferror-limit=0",
        ],
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=False,
    ).stdout
    mistaken = re.findall(r"^(?:(/[^:]+):\d+:\d+: )?error: .*\[clang-diagnostic-error\]", said, flags=re.MULTILINE)
    return said, [path for path in lot if str(path) in mistaken] or (mistaken and lot)


def complaints(lot, flags, folder):
    """clang-tidy's output for each of the sources, read together with others, or alone where it fails to parse."""
    said, mistaken = read(lot, flags, folder)
    if not mistaken or len(lot) == 1:
        return said
    parts = [[path] for path in mistaken] + [[path for path in lot if path not in mistaken]]
    return "".join(complaints(part, flags, folder) for part in parts if part)


def each_once(said):
    """The complaints, each with the lines that show its place, without those that were read before."""
    seen, shown = set(), []
    for complaint in re.split(r"^(?=/.*: (?:error|warning): )", said, flags=re.MULTILINE):
        if (title := complaint.partition("\n")[0]) and title not in seen:
            seen.add(title)
            shown.append(complaint)
    return "".join(shown)


def ordered_lots(files, flags):
    """Lots of what changed, newest first, and then of the others in random order."""
    ordered, changed = recent_first(files, ROOT, random.SystemRandom().randrange(2**32))
    others = lots_of(ordered[changed:], flags)
    random.shuffle(others)
    return lots_of(ordered[:changed], flags) + others


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build_folder", type=Path)
    parser.add_argument("--seconds", type=float, help="begin with no more sources after so many")
    parser.add_argument("files", nargs="*", type=Path)
    options = parser.parse_args()
    if not is_there(version := pinned_version()):
        print(f"skipped: clang-tidy {version} is not there; ./dev setup installs it")
        return SKIPPED
    flags = flags_of(options.build_folder)
    folders = [ROOT / name for name in FOLDERS]
    files = [path.resolve() for path in options.files] or [path for path in flags if any(path.is_relative_to(each) for each in folders)]
    if not files:
        print("no file to check")
        return 1
    end = time.monotonic() + options.seconds if options.seconds is not None else None
    # Without a limit, sources by themselves come first: among them are those that take longest.
    lots = sorted(lots_of(files, flags), key=len) if end is None else ordered_lots(files, flags)

    def complaints_in_time(lot):
        if end is not None and lot is not lots[0] and time.monotonic() > end:
            return 0, ""
        return len(lot), complaints(lot, flags, folder)

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        done = list(pool.map(complaints_in_time, lots))
    said = "".join(each for _, each in done)
    of_all = "" if end is None else f"{sum(count for count, _ in done)} of "
    if said:
        print(each_once(said))
        print(f"clang-tidy has complaints about these {of_all}{len(files)} files")
        return 1
    print(f"{of_all}{len(files)} files, nothing to complain about")
    return 0


if __name__ == "__main__":
    sys.exit(main())
