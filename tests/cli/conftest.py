"""The scoremod command, as the build left it."""

import subprocess

import pytest
from built_command import find_command


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
