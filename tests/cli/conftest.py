"""The scoremod command, as the build left it."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROBLEMS = sorted((ROOT / "examples" / "problems").glob("*.json"))


def find_command():
    folders = [os.environ.get("SCOREMOD_BUILD_DIR"), ROOT / "build" / "release", ROOT / "build" / "dev"]
    for folder in folders:
        command = Path(folder) / "bin" / "scoremod" if folder else None
        if command and command.exists():
            return command
    raise FileNotFoundError("the scoremod command is not built: run ./dev build")


@pytest.fixture
def scoremod(tmp_path):
    """Runs the command in an empty folder: scoremod("zoo", "--json") -> CompletedProcess with text output."""
    command = find_command()

    def run(*arguments, **options):
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        if "input" in options:
            del options["stdin"]
        return subprocess.run(
            [command, *map(str, arguments)], cwd=tmp_path, timeout=120, check=False,
            **{"text": not isinstance(options.get("input"), bytes), **options},
        )

    return run
