"""Describes the machine, the commit and the versions for a record."""

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def _said(command):
    """The first line that a program says; nothing where it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return next(iter(done.stdout.splitlines()), "").strip() if done.returncode == 0 else ""


def machine():
    """The GPU and its driver, and how many cores there are, as environment.sh says it."""
    gpu = _said(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"])
    return f"{gpu or 'no GPU'}, {os.cpu_count()} cores"


def commit():
    """The sources' commit; where there is no history, what SCOREMOD_COMMIT says."""
    return os.environ.get("SCOREMOD_COMMIT") or _said(["git", "-C", str(ROOT), "describe", "--always", "--dirty"])


def versions(*packages):
    """The versions of Python, and of packages that are there; cuDNN's is one."""
    found = {"python": platform.python_version()}
    for name in (*packages, "nvidia-cudnn-cu13"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
