"""docs/reference/environment.md lists the variables that the code reads and the options that the build has: all of them, and no others."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
from scoremod.environment import VARIABLES  # noqa: E402

FOLDERS = ("src", "python", "bindings", "tools", "bench", "tests")
READS = [
    re.compile(r'(?:getenv|variable|flag)\("([A-Z_]+)"[,)]'),
    re.compile(r'environ(?:\.get)?[(\[]"(SCOREMOD_[A-Z_]+)"'),
    re.compile(r"\$\{?(SCOREMOD_[A-Z_]+)"),
]
OPTION = re.compile(r"^ *(?:option\((SCOREMOD_[A-Z_]+)|set\((SCOREMOD_[A-Z_]+)\s[^)]*\bCACHE\b)", re.MULTILINE)
IN_CMAKE = {".txt", ".cmake"}


def read_variables(folders=FOLDERS):
    names = set()
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in {".cpp", ".hpp", ".c", ".py", ".sh"}]
    for path in [*files, *([ROOT / "dev"] if folders is FOLDERS else [])]:
        text = path.read_text(encoding="utf-8")
        names.update(name for pattern in READS for name in pattern.findall(text))
    return names


def build_options():
    files = [ROOT / "CMakeLists.txt", *(ROOT / "cmake").glob("*.cmake"), *ROOT.glob("*/CMakeLists.txt"), *ROOT.glob("*/*/CMakeLists.txt")]
    found = (OPTION.findall(path.read_text(encoding="utf-8")) for path in files)
    return {name for matches in found for pair in matches for name in pair if name}


def documented(after, before=None):
    page = (ROOT / "docs" / "reference" / "environment.md").read_text(encoding="utf-8")
    part = page[page.index(after) : page.index(before) if before else None]
    rows = [line.split("|")[1] for line in part.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([A-Z_]+)`", row)}


def test_variables():
    # HOME and XDG_CACHE_HOME are in a default; JOBS is written without the prefix, as other build tools have it.
    assert documented("## Read by the library", "## Options") == read_variables() - {"HOME", "XDG_CACHE_HOME"} | {"JOBS"}


# These decide which attention is compiled for a problem: a change of one is another key of what is kept. The others decide how it is made or kept.
HOW_IT_IS_MADE = {
    "SCOREMOD_CACHE", "SCOREMOD_CACHE_DIR", "SCOREMOD_CACHE_BYTES", "SCOREMOD_CACHE_ATTENTIONS", "XDG_CACHE_HOME", "HOME", "SCOREMOD_BUILD_PROCESSES", "SCOREMOD_TIMELINE",
    "LD_LIBRARY_PATH",
}  # fmt: skip


def test_python_and_the_library_keep_attention_by_the_same_variables():
    listed = re.search(r"kVariables\[\] = \{([^}]*)\}", (ROOT / "src/runtime/attention_cache.cpp").read_text(encoding="utf-8")).group(1)
    assert list(VARIABLES) == re.findall(r'"([A-Z_]+)"', listed)
    assert set(VARIABLES) == read_variables(["src"]) - HOW_IT_IS_MADE
    assert set(VARIABLES) <= documented("## Read by the library", "## Read by the Python package")


def test_options():
    assert documented("## Options") == build_options()
