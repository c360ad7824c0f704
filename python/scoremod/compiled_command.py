"""The compiled `scoremod` command, which runs in place of Python's."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

# Command -> what it does. The compiled command has the same: tests/python/test_command.py.
COMMANDS = {
    "explain": "what scoremod makes of a problem, and why, without running it",
    "run": "runs a problem, and prints the time that it takes",
    "check": "compares a backend's outputs and gradients with the float64 oracle's",
    "bench": "measures how fast problems run",
    "zoo": "ready-made modifiers, or one with its program",
    "compile": "builds plans ahead of time for a device, on any machine",
    "device": "the current CUDA device's properties, for compile --device",
    "cache": "the files in which plans are kept",
}
_NOT_HERE = 4  # the exit code for what a machine lacks


def run(arguments: Sequence[str]) -> int:
    """Runs it with these arguments. Returns its exit code: docs/reference/command.md has them."""
    places = _places()
    command = next((place for place in places if os.access(place, os.X_OK)), None)
    if command is None:
        looked = ", ".join(str(place) for place in places)
        print(f"scoremod: expected the compiled command at one of {looked}; found none. A wheel has it where CLI11 was found when it was built "
              "(apt-get install libcli11-dev): build the wheel anew, or run ./dev build in a checkout", file=sys.stderr)  # fmt: skip
        return _NOT_HERE
    folders = library_folders()
    environment = {**os.environ, **({"LD_LIBRARY_PATH": os.pathsep.join(folders)} if folders else {})}
    return subprocess.run([command, *arguments], env=environment).returncode


def _places() -> list[Path]:
    """Paths of the command in the order of preference: installed beside this package, built in this checkout."""
    package = Path(__file__).resolve().parent
    places = [package / "bin" / "scoremod"]
    if build := os.environ.get("SCOREMOD_BUILD_DIR"):
        return [*places, Path(build) / "bin" / "scoremod"]
    return places + [package.parents[1] / "build" / preset / "bin" / "scoremod" for preset in ("release", "dev")]


def library_folders() -> list[str]:
    """The loader's folders, and those of cuDNN and NVRTC where they are packages of this Python."""
    folders = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]
    nvidia = importlib.util.find_spec("nvidia")
    for packages in nvidia.submodule_search_locations or () if nvidia else ():
        folders += [str(folder) for folder in sorted(Path(packages).glob("*/lib"))]
    return folders
