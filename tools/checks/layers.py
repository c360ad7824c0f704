#!/usr/bin/env python3
"""Checks that dependencies between the parts of scoremod point one way.

usage: layers.py [ROOT]

Reads the #include lines of every C and C++ file and compares them with the tables below; also holds every source
file to MAX_LINES. Prints each violation as `file:line: what is wrong` and exits 1 if there is one.

A layer is a folder of src/, or a program for developers beside it. Each folder of src/backend/ is a layer of its own: the files directly in
src/backend/ are the interface, and the concrete backends stand above it. So is each folder of a
backend that the table names: families of kernels know what they share and not each other, and what the planner sees knows no family.
"""

import posixpath
import re
import sys
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

# A layer may include itself, the layers named here, and what those may include.
USES = {
    "base": [],
    "ir": ["base"],
    "dsl": ["ir"],
    "zoo": ["dsl"],
    "analysis": ["ir"],
    "masks": ["analysis"],
    "passes": ["ir"],
    "autodiff": ["ir"],
    "problem": ["ir", "zoo"],
    "compiler": ["passes", "masks", "autodiff", "problem"],
    "plans": ["base"],
    "backend": ["compiler"],
    "backend/reference": ["backend"],
    "backend/cpu": ["backend"],
    "backend/cuda/device": ["backend", "plans"],
    "backend/cuda/text": ["backend"],
    "backend/cuda/modules": ["backend/cuda/device"],
    "backend/cuda/compute": ["backend/cuda/modules", "backend/cuda/text"],
    "backend/cuda/float8": ["backend/cuda/modules", "backend/cuda/text"],
    "backend/cuda/operand_gradients": ["backend/cuda/modules", "backend/cuda/text"],
    "backend/kernels": ["backend/cuda/compute", "backend/cuda/float8", "backend/cuda/operand_gradients"],
    "backend/kernels/float8": ["backend/kernels/hopper"],
    "backend/kernels/hopper": ["backend/kernels"],
    "backend/kernels/portable": ["backend/kernels"],
    "backend/kernels/split_kv": ["backend/kernels/hopper"],
    "backend/kernels/backend": ["backend/kernels"],
    "verification": ["backend/reference", "plans"],
    "backend/cudnn": ["backend/cuda/compute", "backend/cuda/float8", "backend/cuda/operand_gradients", "verification"],
    "planner": ["verification"],
    "runtime": ["planner"],
    "check": ["runtime", "verification"],
    "explain": ["runtime"],
    "c_api": ["runtime", "check", "explain", "zoo", "plans"],
    "tools/cudnn": ["runtime", "backend/cudnn"],
}

# Programs for developers: folders outside src/ whose files see the library's internals, each a layer above them.
PROGRAM_FOLDERS = ["tools/cudnn"]

# A public header belongs to the layer that gives it its meaning, and may be included from there upwards.
PUBLIC_HEADERS = {
    "export.hpp": "base",
    "error.hpp": "base",
    "context_lost.hpp": "base",
    "capture_failed.hpp": "base",
    "dtype.hpp": "base",
    "program.hpp": "ir",
    "dsl.hpp": "dsl",
    "zoo.hpp": "zoo",
    "problem.hpp": "problem",
    "problem_file.hpp": "problem",
    "tensors.hpp": "problem",
    "call.hpp": "problem",
    "spans.hpp": "problem",
    "inputs.hpp": "problem",
    "problem_buffers.hpp": "problem",
    "sizes.hpp": "problem",
    "work.hpp": "compiler",
    "cache.hpp": "plans",
    "attention.hpp": "backend",
    "staging.hpp": "runtime",
    "call_timer.hpp": "runtime",
    "attention_cache.hpp": "runtime",
    "open_attention.hpp": "runtime",
    "request_queue.hpp": "runtime",
    "compile_ahead.hpp": "runtime",
    "output_check.hpp": "verification",
    "check.hpp": "check",
    "sample_check.hpp": "check",
    "check_suite.hpp": "check",
    "explain.hpp": "explain",
    "c_api.h": "c_api",
}

# Files that may reach further than their layer, and how far.
EXCEPTIONS = {
    "src/backend/registry.cpp": ["backend/reference", "backend/cpu", "backend/cuda/operand_gradients", "backend/cudnn", "backend/kernels/backend"],
    "src/backend/kernels/backend/operand_kernels_backend.cpp": ["backend/kernels/portable"],
    "src/backend/kernels/backend/kernels_backend.cpp": [
        "backend/kernels/float8",
        "backend/kernels/hopper",
        "backend/kernels/portable",
        "backend/kernels/split_kv",
    ],
}

# Folders outside src/ whose files see the library only as users do.
USER_FOLDERS = ["tools", "bench", "examples", "bindings"]

# Users of third-party headers: a prefix of a header's name, and the layers or folders that may include it.
THIRD_PARTY = {
    "cblas.h": ["bench"],
    "hwy/": ["backend/cpu", "backend/reference"],
    "cudnn_frontend": ["backend/cudnn", "bench"],
    "cudnn": ["backend/cudnn"],
    "cuda": ["backend/cuda/device", "backend/cuda/modules", "backend/cuda/operand_gradients", "backend/cudnn"],
    "CLI/": ["tools", "bench", *PROGRAM_FOLDERS],
    "xla/": ["bindings"],
    "Python.h": ["bindings"],
}

C_STANDARD_HEADERS = {"assert.h", "float.h", "limits.h", "math.h", "stdbool.h", "stddef.h", "stdint.h"}

CHECKED_FOLDERS = ["include", "src", *USER_FOLDERS]
SIZED_FOLDERS = [*CHECKED_FOLDERS, "tests", "python"]
CPP_SUFFIXES = {".c", ".cpp", ".cuh", ".h", ".hpp", ".inl"}
SIZED_SUFFIXES = CPP_SUFFIXES | {".py"}
MAX_LINES = 600

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')


@dataclass(frozen=True)
class Violation:
    path: str
    line: int
    message: str

    def __str__(self):
        return f"{self.path}:{self.line}: {self.message}"


def reachable(layer):
    """The layers that `layer` may include, itself among them."""
    seen, pending = set(), [layer]
    while pending:
        current = pending.pop()
        if current not in seen:
            seen.add(current)
            pending.extend(USES[current])
    return seen


def program_of(path):
    """The folder of the program for developers that a file belongs to; None for other files."""
    return next((folder for folder in PROGRAM_FOLDERS if path.startswith(folder + "/")), None)


def layer_of(path):
    """The layer of a file, such as `backend/cpu`; a name that is not in the table if the file has no place in it."""
    if path.startswith("include/scoremod/"):
        name = path.removeprefix("include/scoremod/")
        return PUBLIC_HEADERS.get(name, name)
    if program := program_of(path):
        return program
    parts = PurePosixPath(path).parts[1:-1]
    if parts[:1] == ("backend",) and len(parts) > 1:
        room = "/".join(parts[:3])
        return room if room in USES else "/".join(parts[:2])
    return parts[0] if parts else ""


def files_below(root, folders, suffixes):
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in suffixes and path.is_file():
                yield path.relative_to(root).as_posix()


def resolve(root, path, included):
    """The file of the project that `#include` of `included` in `path` reads, or None for a header from elsewhere."""
    own_folders = [parent.as_posix() for parent in PurePosixPath(path).parents]
    for base in [*own_folders, "src", "include"]:
        candidate = posixpath.normpath(posixpath.join(base, included))
        if (root / candidate).is_file():
            return candidate
    return None


def third_party_rule(included):
    """The prefix in THIRD_PARTY that `included` falls under (the longest one), or None."""
    matches = [prefix for prefix in THIRD_PARTY if included.startswith(prefix)]
    return max(matches, key=len, default=None)


def is_standard(included):
    return ("." not in included and "/" not in included) or included in C_STANDARD_HEADERS


def check_reach(path, target):
    layer = layer_of(path)
    allowed = reachable(layer).union(EXCEPTIONS.get(path, []))
    if layer_of(target) in allowed:
        return None
    return f"layer {layer} may not include {target}: it may use only {', '.join(sorted(allowed))}"


def check_public_include(root, path, included):
    target = resolve(root, path, included)
    if target is not None and target.startswith("include/"):
        return check_reach(path, target)
    if target is not None:
        return f"a public header may not include {target}: users do not have it"
    if is_standard(included):
        return None
    return f"a public header may include only public headers and the standard library, not <{included}>"


def check_third_party(place, included):
    prefix = third_party_rule(included)
    if prefix is None or place in THIRD_PARTY[prefix]:
        return None
    return f"{place} may not include <{included}>: only {', '.join(THIRD_PARTY[prefix])} may"


def check_source_include(root, path, included):
    target = resolve(root, path, included)
    if target is None:
        return check_third_party(layer_of(path), included)
    return check_reach(path, target)


def check_user_include(root, path, included):
    folder = PurePosixPath(path).parts[0]
    target = resolve(root, path, included)
    if target is None:
        return check_third_party(folder, included)
    if target.startswith("src/") or program_of(target):
        return f"{folder} may use only public headers and its own files, not {target}"
    return None


def check_file(root, path):
    top = PurePosixPath(path).parts[0]
    if top in ("src", "include") and layer_of(path) not in USES:
        message = f"'{layer_of(path)}' is not in the tables of tools/checks/layers.py: say there where it belongs"
        return [Violation(path, 1, message)]
    check = check_user_include if top in USER_FOLDERS and not program_of(path) else check_source_include
    if top == "include":
        check = check_public_include
    violations = []
    for number, line in enumerate((root / path).read_text(encoding="utf-8").splitlines(), start=1):
        match = INCLUDE.match(line)
        message = check(root, path, match.group(1)) if match else None
        if message:
            violations.append(Violation(path, number, message))
    return violations


def check_lengths(root):
    for path in files_below(root, SIZED_FOLDERS, SIZED_SUFFIXES):
        lines = len((root / path).read_text(encoding="utf-8").splitlines())
        if lines > MAX_LINES:
            yield Violation(path, lines, f"{lines} lines; a file may have {MAX_LINES}: split it by subject")


def check_tree(root):
    """All violations in the project at `root`."""
    violations = []
    for path in files_below(root, CHECKED_FOLDERS, CPP_SUFFIXES):
        violations.extend(check_file(root, path))
    violations.extend(check_lengths(root))
    return violations


def main(arguments):
    root = Path(arguments[0] if arguments else Path(__file__).parents[2]).resolve()
    files = sum(1 for _ in files_below(root, CHECKED_FOLDERS, CPP_SUFFIXES))
    violations = check_tree(root)
    for violation in violations:
        print(violation)
    if files == 0:
        print(f"{root} holds no C or C++ file: is this the project?")
        return 1
    print(f"{files} files checked, {len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
