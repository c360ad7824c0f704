"""The options of the GPU backends' build, as CMake sets them for another project that includes scoremod."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SITE_PACKAGES = Path(sys.prefix) / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
# A system's CUDA may have its headers here.
IGNORED = "/usr/local/cuda/include;/usr/local/include;/usr/include"
PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(user LANGUAGES CXX C)
include(FetchContent)
FetchContent_Declare(scoremod SOURCE_DIR "{tree}")
FetchContent_MakeAvailable(scoremod)
foreach(part CUDA CUDNN)
  get_directory_property(has DIRECTORY "{tree}" DEFINITION SCOREMOD_HAS_${{part}})
  message(STATUS "user: ${{part}} ${{has}}")
endforeach()
"""


@pytest.fixture
def configure(tmp_path):
    """CMake for a user's project and a checkout in which nothing was set up: (exit code, what is built, what CMake warned or failed with)."""
    tree = tmp_path / "scoremod"
    tree.mkdir()
    for entry in ROOT.iterdir():
        if entry.name not in (".git", ".venv", "build"):
            (tree / entry.name).symlink_to(entry)
    (tmp_path / "CMakeLists.txt").write_text(PROJECT.format(tree=tree), encoding="utf-8")

    def run(*options, ignored=IGNORED):
        command = ["cmake", "-S", tmp_path, "-B", tmp_path / "build", "-G", "Ninja", f"-DCMAKE_IGNORE_PATH={ignored}"]
        done = subprocess.run([*command, *(f"-D{option}" for option in options)], capture_output=True, text=True)
        built = {line.split()[2] for line in done.stdout.splitlines() if line.startswith("-- user: ") and line.endswith(" ON")}
        # CMake breaks lines where it likes.
        return done.returncode, built, " ".join(done.stderr.split())

    return run


@pytest.fixture
def headers(tmp_path):
    """A folder as that of a package, with the headers of CUDA alone."""
    (tmp_path / "headers").mkdir()
    (tmp_path / "headers" / "include").symlink_to(SITE_PACKAGES / "nvidia" / "cu13" / "include")
    return tmp_path / "headers"


def test_headers_that_are_missing_are_a_warning_that_says_what_to_do(configure):
    code, built, said = configure()
    assert (code, built) == (0, set())
    assert "CMake Warning" in said and "scoremod is built without its backends for NVIDIA GPUs" in said
    for part in ("cuda_runtime_api.h, cudnn.h, cudnn_frontend.h", "SCOREMOD_FETCH_HEADERS=ON", "SCOREMOD_CUDNN_ROOT", "SCOREMOD_CUDA=OFF"):
        assert part in said, said


def test_a_root_has_them(configure):
    assert configure(f"SCOREMOD_CUDNN_ROOT={SITE_PACKAGES}") == (0, {"CUDA", "CUDNN"}, "")


def test_what_is_left_out_on_purpose_is_no_warning(configure, headers):
    assert configure("SCOREMOD_CUDA=OFF") == (0, set(), "")
    assert configure("SCOREMOD_CUDA=AUTO", "SCOREMOD_CUDNN=OFF", f"SCOREMOD_CUDNN_ROOT={headers}") == (0, {"CUDA"}, "")


def test_without_cudnn_the_own_kernels_are_built(configure, headers):
    code, built, said = configure(f"SCOREMOD_CUDNN_ROOT={headers}")
    assert (code, built) == (0, {"CUDA"})
    assert "scoremod is built without its cudnn backend" in said and "headers cudnn.h, cudnn_frontend.h," in said and "SCOREMOD_CUDNN=OFF" in said


@pytest.mark.parametrize(
    "options, part",
    [
        (
            ["SCOREMOD_CUDNN=/opt/cudnn"],
            "SCOREMOD_CUDNN: expected AUTO, ON or OFF, found '/opt/cudnn'. The folder of the headers is named by SCOREMOD_CUDNN_ROOT.",
        ),
        (["SCOREMOD_CUDA=yes"], "SCOREMOD_CUDA: expected AUTO, ON or OFF, found 'yes'"),
        (["SCOREMOD_CUDNN_ROOT=/no/such/folder"], "found '/no/such/folder', which is none"),
        (["SCOREMOD_CUDNN=ON", "SCOREMOD_CUDA=OFF"], "SCOREMOD_CUDNN=ON with SCOREMOD_CUDA=OFF"),
        (["SCOREMOD_CUDNN=ON"], "scoremod is built without its cudnn backend: expected the headers"),
        (["SCOREMOD_CUDA=ON"], "scoremod is built without its backends for NVIDIA GPUs: expected the headers"),
    ],
)
def test_mistakes_end_the_configuration(configure, options, part):
    code, _, said = configure(*options)
    assert code == 1 and "CMake Error" in said and part in said, said


def test_pip_fetches_what_is_asked_for(configure, tmp_path):
    """A Python whose pip links the packages that this one has."""
    python = tmp_path / "python"
    python.write_text(
        f"""#!/bin/sh
case "$*" in
  *"-m pip install"*--target*requirements-cudnn-headers.txt)
    while [ "$1" != --target ]; do shift; done
    ln -s "{SITE_PACKAGES}" "$2" ;;
  *) exec "{sys.executable}" "$@" ;;
esac
""",
        encoding="utf-8",
    )
    python.chmod(0o755)
    assert configure("SCOREMOD_FETCH_HEADERS=ON", f"Python3_EXECUTABLE={python}") == (0, {"CUDA", "CUDNN"}, "")
