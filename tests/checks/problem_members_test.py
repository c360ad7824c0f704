"""A member that is added to AttentionProblem must not compile until every place that decides about it has been changed.

usage: problem_members_test.py BUILD_FOLDER

Compiles each deciding file against a copy of problem.hpp, which must work, and against one with a member more, which must
fail because of the structured bindings there. BUILD_FOLDER has the compile_commands.json that says how.
"""

import json
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEADER = "scoremod/problem.hpp"

# The files that name all members: those that read, write and compare them, that tell people, and that give each backend's answer.
DECIDING = [
    "src/problem/canonical_problem.cpp",
    "src/problem/parse_problem.cpp",
    "src/problem/to_json.cpp",
    "src/explain/explain_text.cpp",
    "src/backend/reference/reference_backend.cpp",
    "src/backend/cpu/cpu_backend.cpp",
    "src/backend/cudnn/problem_rules.cpp",
    "src/backend/kernels/direction_kernels.cpp",
    "src/backend/cuda/operand_gradient_rules.cpp",
]
# Built only where cuDNN's headers are.
OPTIONAL = {"src/backend/cudnn/problem_rules.cpp", "src/backend/kernels/direction_kernels.cpp", "src/backend/cuda/operand_gradient_rules.cpp"}

LAST_MEMBER = "  bool deterministic = false;\n"
ONE_MORE = LAST_MEMBER + "  bool added_by_the_test = false;\n"
# The compilers' message for a structured binding with too few names.
TOO_FEW_NAMES = re.compile(r"decomposes into \d+ elements")


def commands(build_folder):
    """file -> (folder, the command that checks it and writes nothing)."""
    found = {}
    for entry in json.loads((build_folder / "compile_commands.json").read_text(encoding="utf-8")):
        words = shlex.split(entry["command"])
        if "-o" in words:
            at = words.index("-o")
            del words[at : at + 2]
        words = [word for word in words if word != "-c" and Path(word).name != "ccache"]
        path = Path(entry["directory"], entry["file"]).resolve()
        if path.is_relative_to(ROOT):
            found.setdefault(path.relative_to(ROOT).as_posix(), (entry["directory"], words))
    return found


def compile_with(header, folder, words):
    """The compiler's answer where `header` is the text of problem.hpp."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place, HEADER)
        path.parent.mkdir()
        path.write_text(header, encoding="utf-8")
        return subprocess.run([words[0], f"-I{place}", *words[1:], "-fsyntax-only"], cwd=folder, capture_output=True, text=True, check=False)


def complaint(path, folder, words, header):
    """The complaint about a deciding file, or None."""
    if (done := compile_with(header, folder, words)).returncode != 0:
        return f"{path}: expected it to compile with a copy of {HEADER}, found\n{done.stderr}"
    done = compile_with(header.replace(LAST_MEMBER, ONE_MORE), folder, words)
    if done.returncode == 0:
        return f"{path}: expected a new member of AttentionProblem not to compile here, but it does; name every member"
    if not TOO_FEW_NAMES.search(done.stderr):
        return f"{path}: expected a structured binding with too few names, found another error\n{done.stderr}"
    return None


def main(build_folder):
    header = (ROOT / "include" / HEADER).read_text(encoding="utf-8")
    if header.count(LAST_MEMBER) != 1:
        print(f"{HEADER}: expected once {LAST_MEMBER.strip()!r}, after which this test adds a member; tell it the new last member")
        return 1
    known = commands(build_folder)
    missing = [path for path in DECIDING if path not in known and path not in OPTIONAL]
    complaints = [f"{path}: expected it in compile_commands.json; was it moved?" for path in missing]
    complaints += [found for path in DECIDING if path in known and (found := complaint(path, *known[path], header))]
    print("\n".join(complaints) or f"{len(DECIDING)} files name every member")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
