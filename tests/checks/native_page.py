"""Builds and runs pieces of C and C++ that stand on pages, against the library in the build folder, as a user would."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def blocks_of(page, language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


def library_folder():
    folders = [os.environ.get("SCOREMOD_BUILD_DIR"), ROOT / "build" / "release", ROOT / "build" / "dev"]
    found = [Path(folder) / "lib" for folder in folders if folder and (Path(folder) / "lib" / "libscoremod.so").exists()]
    assert found, "the library is not built: run ./dev build"
    return found[0]


def build(folder, source, language="c++"):
    """The path of the executable. Warnings are errors."""
    compiler = os.environ.get("CXX" if language == "c++" else "CC") or shutil.which(language if language == "c++" else "cc")
    if compiler is None:
        pytest.skip(f"no compiler for {language}")
    file = folder / ("page.cpp" if language == "c++" else "page.c")
    file.write_text(source, encoding="utf-8")
    library = library_folder()
    options = [f"-std={'c++20' if language == 'c++' else 'c99'}", "-Wall", "-Wextra", "-Werror", "-I", ROOT / "include"]
    subprocess.run([compiler, *options, file, "-L", library, f"-Wl,-rpath,{library}", "-lscoremod", "-o", folder / "page"], check=True)
    return folder / "page"
