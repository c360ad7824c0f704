"""The drawing of mutants, and a whole run on a tree of one source and one test."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools" / "checks" / "mutants.py"
sys.path.insert(0, str(SCRIPT.parent))
import mutants  # noqa: E402


def changes(text):
    return {mutant.applied(text) for mutant in mutants.mutants_of("src/ir/x.cpp", text)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("return a < b;", {"return a <= b;", "return a >= b;"}),
        ("x += y - z;", {"x -= y - z;", "x += y + z;"}),
        ("const bool all = true;", {"const bool all = false;"}),
        ("int n = 4;", {"int n = 5;"}),
        ("if (is_empty(x)) stop();", {"if (!(is_empty(x))) stop();"}),
        ("return a && b;", {"return a || b;"}),
        ("std::vector<int> x; f(a->b, &c, *d, -e);", set()),
        ("const double large = 1'000'000.5e3;", set()),
        ("return 1;  // more than 2 < 3", {"return 2;  // more than 2 < 3"}),
        ('fail("a < b", 1);', set()),
        ("#include <vector>", set()),
        (
            "if (const int n = f(); n > 1) g();",
            {"if (const int n = f(); n >= 1) g();", "if (const int n = f(); n <= 1) g();", "if (const int n = f(); n > 2) g();"},
        ),
    ],
)
def test_one_operator_constant_or_condition_is_changed(text, expected):
    assert changes(text) == expected


def test_equal_seeds_draw_equal_mutants_of_the_named_folders():
    first, second, other = (mutants.draw(ROOT, 40, seed) for seed in (5, 5, 6))
    assert first == second != other and len(set(first)) == 40
    assert {Path(mutant.file).parts[1] for mutant in mutants.draw(ROOT, 2000, 1)} == set(mutants.FOLDERS)
    few = mutants.draw(ROOT, 10**6, 1, ["*/compare_output.cpp"])
    assert {mutant.file for mutant in few} == {"src/verification/compare_output.cpp"}
    assert any((mutant.before, mutant.after) == (" + ", " - ") for mutant in few)


def test_a_mutant_of_a_file_that_has_changed_is_refused():
    (mutant, *_) = mutants.mutants_of("src/ir/x.cpp", "return a < b;")
    with pytest.raises(AssertionError, match="src/ir/x.cpp has changed"):
        mutant.applied("return aa < b;")


SOURCE = """int larger(int a, int b) {
  return a < b ? b : a;
}
int unused(int a) {
  return a * 3;
}
"""
TEST = """#include <cstring>
int larger(int, int);
int main(int, char** arguments) { return larger(2, 5) == 5 && larger(5, 2) == 5 && std::strstr(arguments[2], "*") ? 0 : 1; }
"""
LISTS = """cmake_minimum_required(VERSION 3.25)
project(toy CXX)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
foreach(kind unit property)
  add_executable(scoremod_${kind}_tests src/ir/larger.cpp test.cpp)
endforeach()
"""
PRESETS = '{"version": 6, "configurePresets": [{"name": "dev", "generator": "Ninja", "binaryDir": "build"}]}'


def test_a_run_names_what_no_test_finds(tmp_path):
    if not (shutil.which("cmake") and shutil.which("ninja")):
        pytest.skip("no CMake or no Ninja")
    tree = tmp_path / "toy"
    (tree / "src" / "ir").mkdir(parents=True)
    for name, text in {"src/ir/larger.cpp": SOURCE, "test.cpp": TEST, "CMakeLists.txt": LISTS, "CMakePresets.json": PRESETS}.items():
        (tree / name).write_text(text)
    subprocess.run("git init -q . && git add -A", shell=True, cwd=tree, check=True)
    command = [sys.executable, SCRIPT, "100", "--seed", "3", "--root", tree, "--build", tmp_path / "scratch"]
    command += ["--filter", "*", "--record", tmp_path / "runs.json"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.startswith("seed 3\n") and "seed 3: 1 found, 3 survived" in said, said
    assert re.search(r"^found: src/ir/larger.cpp:2\n- return a < b \? b : a;\n\+ return a >= b", said, re.MULTILINE)
    assert said.count("\nsurvived: src/ir/larger.cpp:5") == 2 * 2 and (tree / "src/ir/larger.cpp").read_text() == SOURCE
    (run,) = json.loads((tmp_path / "runs.json").read_text())
    assert (run["seed"], run["folders"], run["found"], len(run["survived"])) == (3, ["ir"], 1, 3)


def test_the_tests_of_a_mutants_own_folder_come_first(tmp_path):
    for name, text in {"ir/a_test.cpp": "TEST(Lexer, One) {}\nTEST_P(Parse, Two) {}", "backend/x/b_test.cpp": "TEST_F(Kernels, Three) {}"}.items():
        (tmp_path / "tree/tests/unit" / name).parent.mkdir(parents=True)
        (tmp_path / "tree/tests/unit" / name).write_text(text)
    subprocess.run("git init -q .", shell=True, cwd=tmp_path, check=True)
    scratch = mutants.Scratch(tmp_path, tmp_path, programs=["unit", "property"])
    (mutant, *_) = mutants.mutants_of("src/ir/x.cpp", "return a < b;")
    others = "*-Kernels.*:*/Kernels.*:Kernels/*"
    assert scratch._rounds(None) == [("unit", others), ("property", others)]
    assert scratch._rounds(mutant) == [("unit", "Lexer.*:*/Lexer.*:Lexer/*:Parse.*:*/Parse.*:Parse/*"), ("unit", others), ("property", others)]
