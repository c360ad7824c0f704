"""The check of names reads every source, also of those that it reads together."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RIGHT = "namespace {\nint right_name() { return 1; }\n}\nint NAME() { return right_name(); }\n"


@pytest.fixture
def check_names(tmp_path):
    """Checks sources with these texts, which are compiled alike; returns the exit status and what was said."""
    shutil.copy(ROOT / ".clang-tidy", tmp_path)

    def check(*texts, options=()):
        entries = []
        for number, text in enumerate(texts):
            path = tmp_path / f"source_{number}.cpp"
            path.write_text(text)
            entries.append({"directory": str(tmp_path), "command": f"c++ -std=c++20 -Wno-restrict -Werror -o {number}.o -c {path}", "file": str(path)})
        (tmp_path / "compile_commands.json").write_text(json.dumps(entries))
        done = subprocess.run(
            [sys.executable, ROOT / "tools/checks/names.py", *options, tmp_path, *(entry["file"] for entry in entries)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 77:
            pytest.skip(done.stdout)
        return done.returncode, done.stdout

    return check


def test_right_names_of_sources_that_do_not_go_together_pass(check_names):
    status, said = check_names(RIGHT.replace("NAME", "first"), RIGHT.replace("NAME", "second"))
    assert (status, said) == (0, "2 files, nothing to complain about\n")


@pytest.mark.parametrize("other", ["int other() { return 1; }\n", RIGHT.replace("NAME", "other")], ids=["together", "apart"])
@pytest.mark.parametrize("order", [1, -1])
def test_a_wrong_name_is_found_once(check_names, other, order):
    status, said = check_names(*[RIGHT.replace("NAME", "WrongName"), other][::order])
    assert status == 1
    assert said.count("error: invalid case style for function 'WrongName'") == 1
    assert "redefinition" not in said


def test_a_source_that_does_not_compile_is_a_complaint(check_names):
    status, said = check_names("int first() { return 1; }\n", "int second() { return nothing; }\n")
    assert status == 1
    assert "source_1.cpp:1:23: error: use of undeclared identifier 'nothing'" in said


def test_a_file_that_is_missing_is_a_complaint(check_names):
    status, said = check_names('#include "missing.hpp"\n', "int second() { return 1; }\n")
    assert status == 1
    assert "'missing.hpp' file not found" in said


def test_with_little_time_some_are_read(check_names):
    macro = "#define MACRO 1\nint {}() {{ return MACRO; }}\n"  # sources with macros are read by themselves
    status, said = check_names(macro.format("first"), macro.format("second"), options=("--seconds", "0"))
    assert (status, said) == (0, "1 of 2 files, nothing to complain about\n")
    status, said = check_names(macro.format("FirstWrong"), macro.format("SecondWrong"), options=("--seconds", "0"))
    assert status == 1 and said.count("error: invalid case style") == 1
