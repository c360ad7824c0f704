"""The end of a process whose plans of cuDNN are still being freed."""

import json
import subprocess
import time

import pytest
from built_command import find_command
from cudnn_plans import DEVICES, compile_or_skip, skip_without_cudnn


def problem(length):
    sizes = {"batch": 1, "heads_q": 1, "heads_kv": 1, "seq_q": length, "seq_kv": length, "dim_qk": 64, "dim_v": 64}
    return json.dumps({**sizes, "dtype": "bf16", "program": {"mask_mod": ["causal"]}})


@pytest.fixture(name="choice")
def device_and_store(tmp_path):
    return ["--device", DEVICES / "h200.json", "--backend", "cudnn", "-o", tmp_path / "plans"]


def test_it_is_no_crash(scoremod, choice, tmp_path):
    files = []
    for length in 512, 1024:
        files.append(tmp_path / f"{length}.json")
        files[-1].write_text(problem(length), encoding="utf-8")
    for run in range(4):
        done = compile_or_skip(scoremod, *files, *choice[:-1], tmp_path / f"plans{run}")
        assert done.returncode == 0, done.stderr + done.stdout


def test_the_unluckiest_one_is_no_crash(choice, preload, tmp_path):
    first = tmp_path / "first.json"
    first.write_text(problem(512), encoding="utf-8")
    command = [find_command(), "compile", first, "-", *choice]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, env=preload("late_unload.c"), text=True, **pipes) as process:
        process.stdout.readline()
        # The first plans are freed meanwhile. So cuDNN loads what the second ones need after the thread that frees.
        time.sleep(2)
        try:
            out, errors = process.communicate(problem(1024), timeout=100)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    skip_without_cudnn(subprocess.CompletedProcess(command, process.returncode, out, errors))
    assert process.returncode == 0, errors + out
