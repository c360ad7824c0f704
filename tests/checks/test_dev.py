"""./dev builds what a command runs, and no more."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def dev(tmp_path):
    """Runs a copy of ./dev in a folder with a blank in its name, where every package is installed and other programs only say
    how they were called. Returns these lines."""
    folder, programs = tmp_path / "a clone", tmp_path / "programs"
    (folder / ".venv" / "bin").mkdir(parents=True)
    programs.mkdir()
    shutil.copy(ROOT / "dev", folder)
    calls = tmp_path / "calls"
    made_from = subprocess.run([sys.executable, "-c", "import sys; print(sys.version)"], capture_output=True, text=True).stdout
    for requirements in sorted(ROOT.glob("requirements*.txt")):
        shutil.copy(requirements, folder)
        made_from += requirements.read_text()
    (folder / ".venv" / ".made_from").write_text(made_from)
    (programs / "python3").symlink_to(sys.executable)
    scripts = {programs / "dpkg-query": "echo installed", programs / "cmake": f'echo cmake "$@" >>"{calls}"'}
    scripts[folder / ".venv" / "bin" / "python"] = f'echo python "$@" >>"{calls}"'
    bench = folder / "build" / "release" / "bin" / "scoremod_bench"
    bench.parent.mkdir(parents=True)
    scripts[bench] = f'echo bench "$@" >>"{calls}"'
    for path, command in scripts.items():
        path.write_text(f"#!/bin/sh\n{command}\n")
        path.chmod(0o755)

    def run(*arguments):
        environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "JOBS": "3"}
        done = subprocess.run([folder / "dev", *arguments], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return calls.read_text().splitlines()

    return run


@pytest.mark.parametrize(
    ("command", "target", "program"),
    [("demo", "scoremod", "python examples/minilm/demo.py --x"), ("bench", "scoremod_bench", "bench --x")],
)
def test_only_what_runs_is_built(dev, command, target, program):
    assert dev(command, "--x") == [
        "cmake --preset release",
        f"cmake --build --preset release --parallel 3 --target {target}",
        program,
    ]


def test_build_takes_targets(dev):
    assert dev("build", "dev", "scoremod", "scoremod_jax")[-1] == "cmake --build --preset dev --parallel 3 --target scoremod scoremod_jax"


def test_build_builds_all(dev):
    assert dev("build")[-1] == "cmake --build --preset release --parallel 3"


def test_modules_of_one_run_have_names_of_their_own():
    """pytest takes a second module of a name for the first."""
    of_torch = {ROOT / "tests" / "torch", ROOT / "tests" / "device" / "torch"}
    modules = [path for path in (ROOT / "tests").rglob("test_*.py") if "__pycache__" not in path.parts]
    for run in ([m for m in modules if m.parent in of_torch], [m for m in modules if m.parent not in of_torch]):
        names = [module.name for module in run]
        assert sorted(names) == sorted(set(names))
