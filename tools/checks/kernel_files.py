#!/usr/bin/env python3
"""Counts the files of src/backend/kernels, and those that one Hopper forward is followed through.

usage: kernel_files.py [--list]

The first number counts the .cpp, .hpp and .cuh files of the folder.

The second one counts the files between the planner's question for candidates and the launched text.
- Its device part is the include closure, within src, of hopper/forward.cuh.
- Its host part is the include closure, within the folder, of backend/kernels_backend.cpp. With a header it has the .cpp files beside that
  header, which define what it declares, and their closure.
- OTHERS are files that make no part of a forward's text or launch: other families, gradients of operands, and models of time.
--list prints the files.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "backend/kernels"
HOST_STARTS = [f"{FOLDER}/backend/kernels_backend.cpp"]
DEVICE_STARTS = [f"{FOLDER}/hopper/forward.cuh"]
OTHERS = [
    f"{FOLDER}/float8/",
    f"{FOLDER}/portable/",
    f"{FOLDER}/split_kv/",
    f"{FOLDER}/operand_gradients/",
    f"{FOLDER}/shared/tile_time.",
    f"{FOLDER}/backend/operand_kernels_backend.cpp",
]
SUFFIXES = {".cpp", ".hpp", ".cuh"}
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


def folder_files(src):
    """The folder's files, relative to src."""
    return sorted(path.relative_to(src).as_posix() for path in (src / FOLDER).rglob("*") if path.suffix in SUFFIXES)


def included(src, file):
    """The project's files that a file names in #include lines, relative to src."""
    return [name for name in INCLUDE.findall((src / file).read_text()) if (src / name).is_file()]


def definitions(src, file):
    """The .cpp files beside a header."""
    if not file.endswith(".hpp"):
        return []
    return [path.relative_to(src).as_posix() for path in (src / file).parent.glob("*.cpp")]


def closure(src, starts, follows):
    """The files from `starts` on; `follows` tells which ones of those that a file leads to belong to it."""
    seen, pending = set(), list(starts)
    while pending:
        file = pending.pop()
        if file not in seen:
            seen.add(file)
            pending += [other for other in included(src, file) + definitions(src, file) if follows(other)]
    return sorted(seen)


def device_files(src):
    return closure(src, DEVICE_STARTS, lambda file: file.endswith(".cuh"))


def host_files(src):
    return closure(src, HOST_STARTS, lambda file: file.startswith(FOLDER) and not file.startswith(tuple(OTHERS)))


def forward_files(src):
    """The files of one Hopper forward; those that host and kernels share count once."""
    return sorted({*device_files(src), *host_files(src)})


def main(arguments):
    src = ROOT / "src"
    for what, files in ((f"files of src/{FOLDER}", folder_files(src)), ("files of one Hopper forward", forward_files(src))):
        print(f"{len(files)} {what}, {sum(len((src / file).read_text().splitlines()) for file in files)} lines")
        if arguments == ["--list"]:
            print("".join(f"  {file}\n" for file in files), end="")


if __name__ == "__main__":
    main(sys.argv[1:])
