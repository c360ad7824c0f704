"""A static library, as SCOREMOD_STATIC=ON and BUILD_SHARED_LIBS=OFF install it: programs find what it is made with, by CMake and by pkg-config."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILT = Path(os.environ.get("SCOREMOD_BUILD_DIR", ROOT / "build" / "release")) / "lib" / "libscoremod_internal.a"
LEAST = ["-DSCOREMOD_CUDA=OFF", *(f"-DSCOREMOD_BUILD_{part}=OFF" for part in ("TESTS", "TOOLS", "BENCH", "EXAMPLES"))]

PROJECT = f"""
cmake_minimum_required(VERSION 3.25)
project(user LANGUAGES CXX)
find_package(scoremod REQUIRED)
add_executable(user "{ROOT}/tests/install/main.cpp")
target_link_libraries(user PRIVATE scoremod::scoremod)
"""


def run(*command, **options):
    done = subprocess.run([str(each) for each in command], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{command}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    """An installed tree, whose archive is that of the build under test: both are made of the same objects."""
    if not BUILT.exists():
        pytest.skip(f"no {BUILT}")
    folder = tmp_path_factory.mktemp("static")
    run("cmake", "-S", ROOT, "-B", folder / "build", "-G", "Ninja", "-DBUILD_SHARED_LIBS=OFF", *LEAST)
    (folder / "build" / "lib").mkdir(exist_ok=True)
    shutil.copy(BUILT, folder / "build" / "lib" / "libscoremod.a")
    run("cmake", "--install", folder / "build", "--prefix", folder / "prefix")
    assert (folder / "prefix/share/licenses/scoremod/LICENSE").exists()
    assert not list((folder / "prefix").glob("lib*/**/*.so*"))
    return folder / "prefix"


def test_a_cmake_project_links_it(prefix, tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(PROJECT, encoding="utf-8")
    run("cmake", "-S", tmp_path, "-B", tmp_path / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", tmp_path / "build")
    run(tmp_path / "build" / "user")
    assert "libscoremod" not in run("ldd", tmp_path / "build" / "user")


def test_pkg_config_names_what_it_needs(prefix, tmp_path):
    (folder,) = prefix.rglob("pkgconfig")
    flags = run("pkg-config", "--cflags", "--libs", "scoremod", env=os.environ | {"PKG_CONFIG_PATH": str(folder)}).split()
    run("c++", "-std=c++20", ROOT / "tests/install/main.cpp", "-o", tmp_path / "user", *flags)
    run(tmp_path / "user")
    # C has no C++ library of its own.
    run("cc", "-std=c99", ROOT / "examples/09_from_c.c", "-o", tmp_path / "c_user", *flags)
    run(tmp_path / "c_user")
