"""The check of sources with another compiler sees every header, a share of the sources, and what does not compile."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "checks"))
import clang_syntax  # noqa: E402


@pytest.fixture
def check(tmp_path, monkeypatch, capsys):
    """Checks a tree of these files, compiled as CMake would, with the system's compiler: (exit code, what was said)."""
    monkeypatch.setattr(clang_syntax, "ROOT", tmp_path)

    def run(seconds, **files):
        entries = []
        for name, text in files.items():
            kind = "include/scoremod" if name.endswith("hpp") else "src"
            path = tmp_path / kind / name.replace("_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            command = f"c++ -std=c++20 -o {tmp_path}/a.o -c {path}"
            entries += [{"file": str(path), "directory": str(tmp_path), "command": command}] * (kind == "src")
        (tmp_path / "commands.json").write_text(json.dumps(entries))
        monkeypatch.setattr(sys, "argv", ["clang_syntax.py", str(tmp_path / "commands.json"), str(seconds)])
        code = clang_syntax.main()
        return code, capsys.readouterr().out

    return run


def test_what_compiles_is_right_and_makes_nothing(check, tmp_path):
    code, said = check(100, a_cpp="int x;\n", b_hpp="#pragma once\ninline int f() { return 1; }\n")
    assert code == 0 and "1 headers and 1 of 1 sources, 0 of which changed lately, seed " in said and "0 with errors" in said
    assert not list(tmp_path.rglob("*.o"))


def test_errors_of_headers_and_sources_are_told(check):
    code, said = check(100, a_cpp="int x = y;\n", b_hpp="#pragma once\nint f(Missing);\n")
    assert code == 1 and "a.cpp:1" in said and "Missing" in said and "2 with errors" in said


def test_sources_that_there_is_no_time_for_are_counted(check):
    code, said = check(0, a_cpp="int x = y;\n", b_hpp="#pragma once\n")
    assert code == 0 and "1 headers and 0 of 1 sources" in said


def test_no_source_is_a_mistake(check):
    with pytest.raises(SystemExit, match="expected sources of src"):
        check(1, b_hpp="#pragma once\n")
