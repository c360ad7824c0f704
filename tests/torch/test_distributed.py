"""Attention that is sharded over two processes, by gloo: distributed_processes.py has what they do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def output(request):
    """The output of two processes for all cases: the cases that are right on each."""
    environment = {"SCOREMOD_TEST_SEED": str(os.getpid()), **os.environ, "PYTHONPATH": str(FOLDER.parents[1] / "python"), "OMP_NUM_THREADS": "1"}
    print(f"SCOREMOD_TEST_SEED={environment['SCOREMOD_TEST_SEED']}")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", FOLDER / "distributed_processes.py"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=570)


@pytest.mark.parametrize(
    "name",
    [
        "ring",
        "all_gather",
        "batch",
        "heads",
        "replicated",
        "refusals",
        "wrong_offsets",
        "striped",
        "stripes_of_4",
        "striped_all_gather",
        "dual_chunk_swap",
        "dual_chunk_swap_all_gather",
        "another_order",
        "packed",
        "packed_stripes",
        "packed_dual_chunk_swap",
        "graph_callbacks",
        "graph_callbacks_of_stripes",
        "transfers",
        "autocast",
        "one_token_each",
        "sink_rounding",
        "data_parallel",
        "alike_refusals",
        "nothing_half_done",
        "unlike_calls",
        "captured_dtensors",
    ],
)
def test_both_processes_have_what_one_has(name, output):
    for rank in range(2):
        assert f"{name}: rank {rank} is right" in output.stdout, output.stdout[-2000:] + output.stderr[-4000:]
