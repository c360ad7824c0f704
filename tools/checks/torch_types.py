#!/usr/bin/env python3
"""Checks the types of the PyTorch binding as pyproject.toml has the others checked. Run it by a Python that has basedpyright.

usage: torch_types.py [PYTHON]

PYTHON is one with PyTorch: by default SCOREMOD_TORCH_PYTHON, or that of .venv-torch. No environment of this project has both PyTorch and JAX, so the
packages of PYTHON are looked up beside those of the Python that runs this.
"""

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INCLUDED = ["python/scoremod/torch"]


def torch_python(arguments):
    """The Python with PyTorch: the one that the arguments name, else SCOREMOD_TORCH_PYTHON, else that of .venv-torch."""
    return arguments[0] if arguments else os.environ.get("SCOREMOD_TORCH_PYTHON") or str(ROOT / ".venv-torch/bin/python")


def packages_of(python):
    """The folder where a Python has its packages."""
    return subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], check=True, capture_output=True, text=True).stdout.strip()


def config(packages, root=ROOT):
    """The settings of pyproject.toml for the PyTorch binding below `root`. packages: the folder of PyTorch's packages."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["basedpyright"]
    paths = [str(root / "python"), str(packages)]
    return {**settings, "include": [str(root / each) for each in INCLUDED], "extraPaths": paths}


def check(packages, root=ROOT):
    """basedpyright's exit status, and what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "pyrightconfig.json"
        project.write_text(json.dumps(config(packages, root)), encoding="utf-8")
        command = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "--project", str(project)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def main():
    if len(sys.argv) > 2:
        sys.exit(__doc__)
    status, said = check(packages_of(torch_python(sys.argv[1:])))
    print(said, end="")
    return status


if __name__ == "__main__":
    sys.exit(main())
