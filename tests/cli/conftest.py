"""The scoremod command, as the build left it."""

import os
import shutil
import subprocess

import pytest
from built_command import ROOT, find_command


@pytest.fixture
def scoremod(tmp_path):
    """Runs the command in an empty folder: scoremod("zoo", "--json") -> CompletedProcess with text output."""
    command = find_command()

    def run(*arguments, **options):
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        if "input" in options:
            del options["stdin"]
        return subprocess.run(
            [command, *map(str, arguments)],
            cwd=tmp_path,
            timeout=120,
            check=False,
            **{"text": not isinstance(options.get("input"), bytes), **options},
        )

    return run


@pytest.fixture(scope="session")
def faulty_library(tmp_path_factory):
    """A library to preload, whose check() has the fault that SCOREMOD_TEST_FAULT names."""
    library = tmp_path_factory.mktemp("faulty") / "faulty_check.so"
    compiler = os.environ.get("CXX") or shutil.which("c++") or "g++"
    source = ROOT / "tests" / "cli" / "faulty_check.cpp"
    # check.cpp of the library defines CheckReport::passed(), which the command links to as before.
    subprocess.run([compiler, "-std=c++20", "-shared", "-fPIC", f"-I{ROOT / 'include'}", source, "-o", library], check=True)
    return library


@pytest.fixture(scope="session")
def preload(tmp_path_factory):
    """Builds a C file beside this one as a library, and gives the environment that preloads it."""

    def build(source):
        library = tmp_path_factory.mktemp("preloaded") / f"{source}.so"
        compiler = os.environ.get("CC") or shutil.which("cc") or "gcc"
        subprocess.run([compiler, "-shared", "-fPIC", ROOT / "tests" / "cli" / source, "-o", library, "-ldl"], check=True)
        return {**os.environ, "LD_PRELOAD": str(library)}

    return build
