"""The origin of a result: the machine, the versions and the commit that a committed file names."""

import os
import platform
import subprocess
from pathlib import Path

import jax

import scoremod


def provenance():
    return {"commit": _commit(), "machine": _machine(), "versions": _versions()}


def _commit():
    """A copy of the tree without its history says nothing; SCOREMOD_COMMIT does then."""
    if named := os.environ.get("SCOREMOD_COMMIT"):
        return named
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def _machine():
    device = jax.devices()[0]
    if device.platform == "cpu":
        return f"{_processor()}, {os.cpu_count()} cores"
    return f"{device.device_kind}, {os.cpu_count()} cores"


def _processor():
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _versions():
    return {"scoremod": scoremod.version(), "jax": jax.__version__, "python": platform.python_version()}
