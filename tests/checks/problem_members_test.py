"""A member or a topic that is added to AttentionProblem must not compile until every place that decides about it has been changed.

usage: problem_members_test.py BUILD_FOLDER

Compiles each deciding file against copies of problem.hpp. The copy as it is must work. One with a member more in each
topic must fail because of the structured bindings there, and one with a topic more must fail, too.
BUILD_FOLDER has the compile_commands.json that says how.
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
    "src/backend/kernels/shared/tiled_variant.cpp",
    "src/backend/cuda/operand_gradients/operand_gradient_rules.cpp",
]
# Built only where cuDNN's headers are.
OPTIONAL = {
    "src/backend/cudnn/problem_rules.cpp",
    "src/backend/kernels/shared/tiled_variant.cpp",
    "src/backend/cuda/operand_gradients/operand_gradient_rules.cpp",
}

TOPICS = ["Sequences", "TensorDTypes", "TensorLayouts", "SoftmaxOptions", "OutputOptions", "BackwardOptions", "ScoreProgram"]
LAST_TOPIC = "                          ScoreProgram {\n"
ONE_MORE_TOPIC = "struct AddedByTheTest {\n  bool added = false;\n  bool operator==(const AddedByTheTest&) const = default;\n};\n\n"
# The compilers' messages for a structured binding with too few names, and for a topic that nobody has decided about.
TOO_FEW_NAMES = re.compile(r"decomposes into \d+ elements")
UNDECIDED_TOPIC = re.compile(r"static assertion failed|static_assert failed")


def with_member_in_each_topic(header):
    """The header's text with a member more in each topic."""
    for topic in TOPICS:
        end = f"\n  bool operator==(const {topic}&) const = default;\n"
        if header.count(end) != 1:
            sys.exit(f"{HEADER}: expected once {end.strip()!r}, before which this test adds a member; tell it the new topics")
        header = header.replace(end, "  bool added_by_the_test = false;\n" + end)
    return header


def with_another_topic(header):
    """The header's text with a topic more."""
    problem = "/// Everything that decides the computation"
    if header.count(LAST_TOPIC) != 1 or header.count(problem) != 1:
        sys.exit(f"{HEADER}: expected once {LAST_TOPIC.strip()!r}, after which this test adds a topic; tell it the new last topic")
    return header.replace(LAST_TOPIC, LAST_TOPIC.replace(" {", ",\n AddedByTheTest {")).replace(problem, ONE_MORE_TOPIC + problem)


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
    done = compile_with(with_member_in_each_topic(header), folder, words)
    found = len(TOO_FEW_NAMES.findall(done.stderr))
    if found < len(TOPICS):
        return f"{path}: expected a new member of each of {len(TOPICS)} topics not to compile here, found that of {found}; name every member\n{done.stderr}"
    done = compile_with(with_another_topic(header), folder, words)
    if not UNDECIDED_TOPIC.search(done.stderr):
        return f"{path}: expected a new topic not to compile here, but it does; assert kAllTopics\n{done.stderr}"
    return None


def main(build_folder):
    header = (ROOT / "include" / HEADER).read_text(encoding="utf-8")
    known = commands(build_folder)
    missing = [path for path in DECIDING if not Path(ROOT, path).is_file() or (path not in known and path not in OPTIONAL)]
    complaints = [f"{path}: expected it in compile_commands.json; was it moved?" for path in missing]
    complaints += [found for path in DECIDING if path in known and (found := complaint(path, *known[path], header))]
    print("\n".join(complaints) or f"{len(DECIDING)} files name every member")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
