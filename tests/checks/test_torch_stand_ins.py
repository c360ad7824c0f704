"""tools/torch_stand_ins.py: a library whose NVIDIA libraries are gone loads, and its calls are told that there is no device."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "torch_stand_ins.py"

pytestmark = pytest.mark.skipif(not (shutil.which("gcc") and shutil.which("readelf")), reason="needs gcc and readelf")

# With a version, and without; a function, a text and data.
RUNTIME = 'int cudaCount(int* n) { *n = 1; return 0; }\nconst char* cudaGetErrorString(int e) { return "fine"; }\nint cudaTable[4] = {1, 2, 3, 4};\n'
PLAIN = "int nvPlain(void) { return 0; }\n"
USER = """
extern int cudaCount(int*), nvPlain(void), cudaTable[4];
extern const char* cudaGetErrorString(int);
int count(void) { int n = 0; return cudaCount(&n); }
int plain(void) { return nvPlain(); }
const char* text(void) { return cudaGetErrorString(0); }
int* table(void) { return cudaTable; }
"""


def compile_library(folder, name, source, *options):
    file = folder / f"{name}.c"
    file.write_text(source)
    subprocess.run(["gcc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", folder / name, file, *options], check=True)
    file.unlink()


@pytest.fixture
def site_packages(tmp_path):
    """A library like PyTorch's, and none of those that it is linked with."""
    folder = tmp_path / "torch" / "lib"
    folder.mkdir(parents=True)
    script = tmp_path / "exports"
    script.write_text("libcudart.so.12 { global: *; };\n")
    compile_library(folder, "libcudart.so.12", RUNTIME, f"-Wl,--version-script={script}")
    compile_library(folder, "libnvplain.so.1", PLAIN)
    compile_library(folder, "libuser.so", USER, folder / "libcudart.so.12", folder / "libnvplain.so.1", "-Wl,-rpath,$ORIGIN")
    (folder / "libcudart.so.12").unlink()
    (folder / "libnvplain.so.1").unlink()
    return tmp_path


def loaded(site_packages):
    script = (
        "import ctypes, sys; user = ctypes.CDLL(sys.argv[1]); user.text.restype = ctypes.c_char_p; user.table.restype = ctypes.c_void_p\n"
        "print(user.count(), user.plain(), user.text().decode(), bool(user.table()))"
    )
    return subprocess.run([sys.executable, "-c", script, site_packages / "torch" / "lib" / "libuser.so"], capture_output=True, text=True)


def test_what_is_missing_is_stood_in_for(site_packages):
    assert "cannot open shared object file" in loaded(site_packages).stderr
    for _ in range(2):  # over the stand-ins of an earlier run, too
        made = subprocess.run([sys.executable, TOOL, site_packages], capture_output=True, text=True, check=True).stdout
        assert made.splitlines() == ["libcudart.so.12: 3 functions", "libnvplain.so.1: 1 functions"]
        done = loaded(site_packages)
        assert done.stdout == "100 100 no CUDA-capable device is detected (a stand-in) True\n", done.stderr


def test_it_says_how_it_is_called():
    done = subprocess.run([sys.executable, TOOL], capture_output=True, text=True)
    assert done.returncode == 1 and "usage: torch_stand_ins.py SITE_PACKAGES" in done.stderr
