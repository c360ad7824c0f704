"""Calls of many threads: tools/device/threads.py for some seconds on the CPU with its control, and what it found."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from scoremod.torch import execution, flex_attention

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "device" / "threads.py"


@pytest.mark.parametrize("control", [[], ["--control"]], ids=["right", "control"])
def test_a_short_run(control, tmp_path, seed):
    record = tmp_path / "record.json"
    command = [
        sys.executable,
        "-W",
        "ignore",
        str(SCRIPT),
        str(record),
        "--seconds",
        "4",
        "--device",
        "cpu",
        "--cases",
        "3",
        "--threads",
        "3",
        "--seed",
        str(seed),
    ]
    done = subprocess.run([*command, *control], capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr)
    if control:
        assert done.returncode == 0 and not record.exists()
        return
    (row,) = json.loads(record.read_text())
    # Memory may grow in seconds.
    assert row["wrong_count"] == 0 and not row["errors"] and row["seed"] == seed
    assert {"forward", "backward", "evict", "torch product"} <= set(row["actions"])


def test_a_capture_waits_for_no_whole_device(monkeypatch):
    """Which would end captures of XLA's in other threads."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import threads_beside

    calls = []
    graph = SimpleNamespace(capture_begin=lambda **how: calls.append(how), capture_end=lambda: calls.append("end"))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: graph)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: calls.append("the whole device"))
    assert threads_beside.captured(lambda: calls.append("run") or 7) == (graph, 7)
    assert calls == [{"capture_error_mode": "thread_local"}, "run", "end"]


def test_a_problem_is_known_to_other_threads_once_it_is_whole(monkeypatch):
    """A thread that came between got "'CompiledProblem' object has no attribute 'sizes'"."""

    class Watched(dict):
        def __setitem__(self, key, problem):
            super().__setitem__(key, problem)
            at_once.append(set(vars(problem)))

    at_once, kept = [], Watched()
    monkeypatch.setattr(execution, "_kept", kept)
    q = torch.randn(1, 1, 5, 8, requires_grad=True)
    flex_attention(q, q, q, lambda score, b, h, q_idx, kv_idx: score * 0.377).sum().backward()
    assert at_once == [set(vars(problem)) for problem in kept.values()] and all("sizes" in each for each in at_once)
