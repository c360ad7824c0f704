"""The wheel that pip builds, installed where nothing else of scoremod is."""

import fcntl
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SITE_PACKAGES = Path(sys.prefix) / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"

# The systems that ./dev wheel makes wheels for: those with glibc 2.28, and newer ones.
OLDEST = f"manylinux_2_28_{platform.machine()}"

# A call of each kind, against what plain attention gives.
SCOREMOD_ALONE = """
import sys
import numpy as np, scoremod
q = np.random.default_rng(0).standard_normal((1, 8, 2, 8), dtype=np.float32)
o = scoremod.attention(q, q, q, score_mod="score * 0.0", mask_mod="q_idx >= kv_idx")
np.testing.assert_allclose(o, np.cumsum(q, axis=1) / np.arange(1, 9).reshape(8, 1, 1), rtol=1e-5, atol=1e-6)
assert "jax" not in sys.modules
try:
    scoremod.attention(q, q, q, score_mod="score +")
except scoremod.InvalidArgumentError as error:
    assert "found the end of the statement" in str(error), error
else:
    raise AssertionError("the program has no end")
try:
    import scoremod.jax
except ModuleNotFoundError as error:
    assert error.name == "jax", error
else:
    raise AssertionError("there is no jax here")
print(scoremod.__file__)
print(scoremod.version())
"""
SCOREMOD_JAX = """
import jax, jax.numpy as jnp, numpy as np, scoremod.jax
q = jax.random.normal(jax.random.key(0), (1, 8, 2, 8))
mods = lambda score, b, h, q_idx, kv_idx: score * 0.0, lambda b, h, q_idx, kv_idx: q_idx >= kv_idx
o, pull_back = jax.vjp(lambda v: scoremod.jax.flex_attention(q, q, v, *mods), q)
np.testing.assert_allclose(o, jnp.cumsum(q, axis=1) / jnp.arange(1, 9).reshape(8, 1, 1), rtol=1e-5, atol=1e-6)
np.testing.assert_allclose(pull_back(jnp.ones_like(o))[0][0, -1], 1 / 8, rtol=1e-5)
print(scoremod.jax.__file__)
"""


def run(*command, folder):
    """Runs a command in a folder, without what a developer's shell may say of where scoremod is. Returns its output."""
    hidden = ("PYTHONPATH", "SCOREMOD_BUILD_DIR", "SCOREMOD_LIBRARY", "SCOREMOD_JAX_LIBRARY", "LD_LIBRARY_PATH")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    if jobs := environment.get("JOBS"):
        environment["CMAKE_BUILD_PARALLEL_LEVEL"] = jobs
    environment["JAX_PLATFORMS"] = "cpu"
    environment |= {name: os.environ.get(name, compiler) for name, compiler in (("CC", "cc"), ("CXX", "c++"))}
    done = subprocess.run([str(x) for x in command], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """The source distribution, as pip and `python -m build --sdist` ask the build's backend for it."""
    folder = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-c", "import sys, scikit_build_core.build as backend; backend.build_sdist(sys.argv[1])", folder, folder=ROOT)
    (made,) = folder.glob("*.tar.gz")
    return made


def portable_options(tree):
    """Options of pip that link for older systems, as ./dev wheel does: none without its tools, or on a system newer than Debian 12."""
    if tuple(map(int, platform.libc_ver()[1].split("."))) > (2, 36):
        return []
    zig = list((ROOT / "build" / "wheel-tools").glob("lib/python3*/site-packages/ziglang/zig"))
    defines = {"CMAKE_TOOLCHAIN_FILE": tree / "cmake" / "ManylinuxToolchain.cmake", "SCOREMOD_ZIG": zig[0]} if zig else {}
    return [text for name, value in defines.items() for text in ("--config-settings", f"cmake.define.{name}={value}")]


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    """A wheel that is built from the source distribution, with the packages of this Python and nothing from the network. The build's folder lies in the
    unpacked tree as those of ./dev build lie in the checkout. ccache compares relative paths and the compiler's name, and so has every object."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.unpack_archive(sdist, folder)
    (tree,) = (each for each in folder.iterdir() if each.is_dir())
    pip = [sys.executable, "-m", "pip", "wheel", "--no-index", "--no-deps", "--no-build-isolation"]
    (ROOT / "build").mkdir(exist_ok=True)
    # Another worker of pytest may need a wheel as well.
    with (ROOT / "build" / "wheel.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run(*pip, "--config-settings", f"build-dir={tree / 'build' / 'wheel'}", *portable_options(tree), "--wheel-dir", folder, tree, folder=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no checkout")
def test_the_source_distribution_is_the_tree_without_what_is_built(sdist):
    with tarfile.open(sdist) as archive:
        files = {name.split("/", 1)[1] for name in archive.getnames()}
    tracked = set(subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines())
    assert tracked - files == set()
    assert not any(name.startswith((".git/", "build/", ".venv")) or name.endswith(".pyc") for name in files)
    assert sdist.stat().st_size < 10e6


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The Python of a fresh environment with the wheel and NumPy, and no more."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-deps", wheel, folder=folder)
    (packages,) = folder.glob("lib/python3*/site-packages")
    for each in SITE_PACKAGES.glob("numpy*"):
        (packages / each.name).symlink_to(each)
    return python


def test_it_serves_every_python(wheel):
    name, version, python, abi, system = wheel.stem.split("-")
    assert (name, python, abi) == ("scoremod", "py3", "none")
    assert system.startswith("linux_")
    with zipfile.ZipFile(wheel) as archive:
        files = archive.namelist()
        metadata = archive.read(f"scoremod-{version}.dist-info/METADATA").decode()
    expected = {"libscoremod.so", "libscoremod_jax.so", "scoremod_torch.abi3.so", "jax/api.py", "py.typed", "jax/graph.pyi"}
    assert {f"scoremod/{name}" for name in expected} <= set(files)
    pages = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert {file.removeprefix("scoremod/") for file in files if file.endswith(".md")} == pages
    # Nothing but the package: no headers, no tests, no files of the build.
    assert {file.split("/")[0] for file in files} == {"scoremod", f"scoremod-{version}.dist-info"}
    needed = [line.removeprefix("Requires-Dist: ") for line in metadata.splitlines() if line.startswith("Requires-Dist: ")]
    assert [each for each in needed if "extra ==" not in each] == ["numpy>=2"]


def test_scoremod_alone_needs_no_jax(installed, tmp_path):
    place, version = run(installed, "-c", SCOREMOD_ALONE, folder=tmp_path).splitlines()
    assert Path(place).is_relative_to(installed.parents[1])
    assert f"VERSION {version} " in (ROOT / "CMakeLists.txt").read_text()


def test_its_pages_are_printed(installed, tmp_path):
    assert run(installed, "-m", "scoremod", "docs", "torch", folder=tmp_path) == (ROOT / "docs/guide/torch.md").read_text(encoding="utf-8")


def test_its_command_has_all_commands(installed, tmp_path):
    command = installed.parent / "scoremod"
    assert "soft_cap" in run(command, "zoo", folder=tmp_path)  # compiled
    doctor = run(command, "doctor", "--static", folder=tmp_path)
    assert str(installed.parents[1] / "lib") in doctor and "runs on cpu" in doctor
    (tmp_path / "problem.json").write_text('{"batch": 1, "heads_q": 1, "seq_q": 8, "dim_qk": 8, "dtype": "f32"}', encoding="utf-8")
    assert "(chosen)" in run(command, "explain", "problem.json", folder=tmp_path)


def test_its_command_knows_the_librarys_exceptions(installed, tmp_path):
    """Each has a C++ library of its own, and the two agree on the types."""
    (tmp_path / "problem.json").write_text('{"batch": -1, "heads_q": 1, "seq_q": 8, "dim_qk": 8, "dtype": "f32"}', encoding="utf-8")
    done = subprocess.run([installed.parent / "scoremod", "explain", "problem.json"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and "batch: expected" in done.stderr, done.stderr


def test_the_libraries_are_the_wheels_own(installed, tmp_path):
    # Five fields stand before a mapped file's path, which may hold blanks. Only file names tell whose a library is: the checkout's folder,
    # where NumPy's libraries are, may have any name, scoremod included.
    script = "import scoremod; scoremod.version()\nfor line in open('/proc/self/maps'): print(*line.rstrip().split(maxsplit=5)[5:])"
    mapped = {Path(line) for line in run(installed, "-c", script, folder=tmp_path).splitlines() if ".so" in line}
    loaded = {path for path in mapped if path.name.startswith(("libscoremod", "libhwy"))}
    assert {path.name for path in loaded} == {"libscoremod.so", "libhwy.so.1"}
    assert all(path.is_relative_to(installed.parents[1]) for path in loaded)


@pytest.fixture(scope="module")
def for_other_machines(wheel, tmp_path_factory):
    """The wheel as ./dev wheel names it."""
    tools = ROOT / "build" / "wheel-tools" / "bin"
    if not (tools / "auditwheel").exists():
        pytest.skip("no build/wheel-tools: ./dev wheel makes them, and ./dev test")
    folder = tmp_path_factory.mktemp("portable")
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    # It fails where a library takes from the system what glibc 2.28 lacks.
    oldest = OLDEST if portable_options(ROOT) else "auto"
    done = subprocess.run([tools / "auditwheel", "repair", "--plat", oldest, "--wheel-dir", folder, wheel], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    (named,) = folder.glob("*.whl")
    return named


def test_it_installs_where_there_is_no_compiler(for_other_machines, tmp_path):
    """In an environment of its own, with a path that has nothing else, and with none of the build's libraries."""
    tags = for_other_machines.stem.split("-")[-1].split(".")
    assert OLDEST in tags if portable_options(ROOT) else all(tag.startswith("manylinux_2_") for tag in tags)
    venv.create(tmp_path / "environment", symlinks=True)
    python = tmp_path / "environment" / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-deps", for_other_machines, folder=tmp_path)
    (packages,) = (tmp_path / "environment").glob("lib/python3*/site-packages")
    for each in SITE_PACKAGES.glob("numpy*"):
        (packages / each.name).symlink_to(each)
    script = f"import os, shutil\nassert not any(shutil.which(name) for name in ('cc', 'c++', 'gcc', 'g++', 'ld', 'cmake', 'ninja'))\n{SCOREMOD_ALONE}"
    done = subprocess.run([python, "-c", script], cwd=tmp_path, env={"PATH": str(python.parent)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    linked = "\n".join(subprocess.run(["ldd", path], capture_output=True, text=True).stdout for path in packages.glob("scoremod*/*.so*"))
    outside = {line.split()[0] for line in linked.splitlines() if "=> /" in line and str(packages) not in line}
    # The C and C++ libraries, which manylinux takes from the system. CUDA's are opened at run time. Highway alone takes the system's C++ library.
    assert outside <= {"libstdc++.so.6", "libm.so.6", "libgcc_s.so.1", "libc.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1"}
    assert "not found" not in linked
    assert (packages.parents[2] / "bin" / "scoremod").exists()


def test_jax_runs_from_it(installed, tmp_path):
    """JAX itself is this Python's: the wheel's environment comes first on the path."""
    (packages,) = installed.parents[1].glob("lib/python3*/site-packages")
    script = f"import sys; sys.path[:0] = [{str(packages)!r}]\n{SCOREMOD_JAX}"
    assert Path(run(sys.executable, "-c", script, folder=tmp_path).splitlines()[-1]).is_relative_to(packages)
