"""The paths of the checkout and of the scoremod command that it built."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROBLEMS = sorted((ROOT / "examples" / "problems").glob("*.json"))


def find_command():
    folders = [os.environ.get("SCOREMOD_BUILD_DIR"), ROOT / "build" / "release", ROOT / "build" / "dev"]
    for folder in folders:
        command = Path(folder) / "bin" / "scoremod" if folder else None
        if command and command.exists():
            return command
    raise FileNotFoundError("the scoremod command is not built: run ./dev build")
