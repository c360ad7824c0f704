"""docs/cpp.md: its program is built and run as a user would, and its table has every public header."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "cpp.md").read_text(encoding="utf-8")


def library_folder():
    folders = [os.environ.get("SCOREMOD_BUILD_DIR"), ROOT / "build" / "release", ROOT / "build" / "dev"]
    found = [Path(folder) / "lib" for folder in folders if folder and (Path(folder) / "lib" / "libscoremod.so").exists()]
    assert found, "the library is not built: run ./dev build"
    return found[0]


def test_the_program_runs(tmp_path):
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    (tmp_path / "page.cpp").write_text(re.search(r"```cpp\n(.*?)```", PAGE, re.DOTALL)[1], encoding="utf-8")
    library = library_folder()
    options = ["-std=c++20", "-Wall", "-Wextra", "-Werror", "-I", ROOT / "include", "-L", library, f"-Wl,-rpath,{library}"]
    subprocess.run([compiler, *options, "page.cpp", "-lscoremod", "-o", "page"], cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "page"], capture_output=True, text=True, check=True)
    # Every row of v is 0.3, whatever the weights.
    assert float(re.search(r"o\[0\] (\S+),", done.stdout)[1]) == pytest.approx(0.3, rel=1e-5)


def test_every_header_is_in_the_table():
    headers = {path.name for path in (ROOT / "include" / "scoremod").glob("*.hpp")} - {"export.hpp"}
    rows = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`(\w+\.hpp)`", row)} == headers
