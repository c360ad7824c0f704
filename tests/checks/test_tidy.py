"""clang-tidy's check begins with the sources that changed lately, ends in time, and says what it saw."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "checks"))
import tidy  # noqa: E402

COMPLAINTS = "{path}:1:1: error: about this source\n  1 | int x;\n{root}/a.hpp:2:1: error: about a header\n  note\n"


@pytest.fixture
def check(tmp_path, monkeypatch, capsys):
    """Checks a tree of sources with a clang-tidy that complains about those whose text has "bad": (exit code, what was said)."""
    program = tmp_path / "clang-tidy"
    text = COMPLAINTS.format(path="$4", root=tmp_path).replace("\n", "\\n")
    program.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo "version {tidy.names.pinned_version()}" && exit\ngrep -q bad "$4" || exit 0\nprintf "{text}"\nexit 1\n'
    )
    program.chmod(0o755)
    monkeypatch.setattr(tidy, "ROOT", tmp_path)
    monkeypatch.setattr(tidy.names, "CLANG_TIDY", program)
    build = tmp_path / "build"
    build.mkdir()

    def run(sources, *arguments):
        for name, content in sources.items():
            (tmp_path / name).write_text(content)
        entries = [{"file": str(tmp_path / name), "directory": str(build)} for name in (*sources, "build/made.cpp", "/usr/other.cpp")]
        (build / "compile_commands.json").write_text(json.dumps(entries))
        monkeypatch.setattr(sys, "argv", ["tidy.py", str(build), *arguments])
        code = tidy.main()
        return code, capsys.readouterr().out

    return run


def test_sources_without_complaints_are_named_and_counted(check):
    code, said = check({"a.cpp": "int a;", "b.cpp": "int b;"}, "--seed", "3")
    assert code == 0 and sorted(said.splitlines()[:2]) == ["a.cpp", "b.cpp"]
    assert said.splitlines()[2:] == [f"clang-tidy {tidy.names.pinned_version()}: 2 of 2 sources, 0 of which changed lately, seed 3, 0 with complaints"]


def test_a_complaint_is_told_once(check):
    code, said = check({"a.cpp": "bad", "b.cpp": "bad", "c.cpp": "int c;"})
    assert code == 1 and "2 with complaints" in said
    assert said.count("about this source") == 2 and said.count("about a header\n  note\n") == 1


def test_sources_that_there_is_no_time_for_are_counted(check):
    code, said = check({"a.cpp": "bad", "b.cpp": "bad"}, "--seconds", "1e-9")
    assert code == 0 and ": 0 of 2 sources" in said


def test_recent_sources_come_first(check, tmp_path, monkeypatch):
    monkeypatch.setattr("recent_first.changed", lambda root, commits: [tmp_path / "c.cpp"])
    code, said = check({f"{letter}.cpp": "" for letter in "abcde"}, "--jobs", "1")
    assert code == 0 and said.splitlines()[0] == "c.cpp" and "1 of which changed lately" in said


def test_named_files_are_checked_alone(check, tmp_path):
    code, said = check({"a.cpp": "bad", "b.cpp": "int b;"}, "--jobs", "1", str(tmp_path / "b.cpp"))
    assert code == 0 and ": 1 of 1 sources" in said


def test_no_source_is_a_mistake(check):
    with pytest.raises(SystemExit, match="expected sources in"):
        check({})
