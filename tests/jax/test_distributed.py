"""Several processes on one host, joined by jax.distributed with CPU collectives."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("distributed_processes.py")
ROOT = PROGRAM.parents[2]


@pytest.mark.parametrize("processes", [2, 4])
def test_processes_compute_what_one_does(processes):
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port = found.getsockname()[1]
    # One device for each process, and each compiles what it runs.
    environment = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR")}
    environment["PYTHONPATH"] = str(ROOT / "python")
    running = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(processes), str(number), str(port)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(processes)
    ]
    try:
        outputs = [each.communicate(timeout=600)[0] for each in running]
    finally:
        for each in running:
            each.kill()
    for number, (each, output) in enumerate(zip(running, outputs)):
        assert each.returncode == 0, output[-3000:]
        for name in ("batch", "heads", "ring", "all_gather"):
            assert f"process {number}: {name} is right" in output
