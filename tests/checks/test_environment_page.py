"""docs/reference/environment.md lists the variables that the code reads and the options that the build has: all of them, and no others."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("src", "python", "bindings", "tools", "bench", "explorer", "acceptance", "tests")
READS = [
    re.compile(r'(?:getenv|variable|flag)\("([A-Z_]+)"[,)]'),
    re.compile(r'environ(?:\.get)?[(\[]"(SCOREMOD_[A-Z_]+)"'),
    re.compile(r"\$\{?(SCOREMOD_[A-Z_]+)"),
]
OPTION = re.compile(r"^ *(?:option\((SCOREMOD_[A-Z_]+)|set\((SCOREMOD_[A-Z_]+)\s[^)]*\bCACHE\b)", re.MULTILINE)
IN_CMAKE = {".txt", ".cmake"}


def read_variables():
    names = set()
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in {".cpp", ".hpp", ".c", ".py", ".sh"}]
    for path in [*files, ROOT / "dev"]:
        text = path.read_text(encoding="utf-8")
        names.update(name for pattern in READS for name in pattern.findall(text))
    return names


def build_options():
    files = [ROOT / "CMakeLists.txt", *(ROOT / "cmake").glob("*.cmake"), *ROOT.glob("*/CMakeLists.txt"), *ROOT.glob("*/*/CMakeLists.txt")]
    found = (OPTION.findall(path.read_text(encoding="utf-8")) for path in files)
    return {name for matches in found for pair in matches for name in pair if name}


def documented(after, before=None):
    page = (ROOT / "docs" / "reference" / "environment.md").read_text(encoding="utf-8")
    part = page[page.index(after):page.index(before) if before else None]
    rows = [line.split("|")[1] for line in part.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([A-Z_]+)`", row)}


def test_variables():
    # HOME and XDG_CACHE_HOME are in a default; JOBS is written without the prefix, as other build tools have it.
    assert documented("## Read by the library", "## Options") == read_variables() - {"HOME", "XDG_CACHE_HOME"} | {"JOBS"}


def test_options():
    assert documented("## Options") == build_options()
