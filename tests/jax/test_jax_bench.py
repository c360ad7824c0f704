"""The benchmark writes its report, also where JAX has no cuDNN to compare with."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(script, path, options, **variables):
    """The report of a benchmark."""
    paths = os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths, "SCOREMOD_COMMIT": "some"} | variables
    subprocess.run([sys.executable, ROOT / "bench" / "jax" / script, path, *options.split()], env=environment, check=True)
    report = json.loads(path.read_text())
    assert report["commit"] == "some" and report["versions"]["jax"]
    return report


def test_where_the_time_of_sharded_attention_goes(tmp_path):
    options = "--batch 2 --heads 2 --seq 32 --dim 16 --calls 1 --dtype float32 --parts"
    report = run("sharding.py", tmp_path / "report.json", options, XLA_FLAGS="--xla_force_host_platform_device_count=2")
    entries = {(entry["sharded"], entry["devices"]): entry for entry in report["results"]}
    assert len(entries) == 8 and all(entry["ms"] > 0 and entry["forward"]["ms"] > 0 and entry["speedup"] > 0 for entry in entries.values())
    ring, gathered = ("\n".join(entries[f"sequence_{strategy}", 2]["schedule"]) for strategy in ("ring", "all_gather"))
    assert [ring.count(f"scoremod_attention_{direction} of problem") for direction in ("forward", "backward")] == [3, 3]
    assert ring.count("collective-permute ") == 4 and "conditional" in ring and gathered.count("all-gather ") == 2
    assert [(entry["part"], entry["forward_and_backward"]["ms"] > 0) for entry in report["parts"]] == [(0, True), (1, True), (-1, True)]
    # One of all, two of the halves of batch and heads, four of the ring's two masks forward and backward, and the gathered one.
    assert len(report["problems"]) == 8 and all("q_idx" in problem["program"] for problem in report["problems"])


def test_the_report(tmp_path):
    options = "--batch 1 --heads 2 --seq 32 --dim 16 --calls 1 --dtype float32 --case causal --case soft_cap"
    report = run("flex_attention.py", tmp_path / "report.json", options)
    assert report["call_overhead"]["addition"]["ms"] > 0
    entries = {(x["case"], x["direction"], x["implementation"]): x for x in report["results"]}
    assert len(entries) == 2 * (3 + 2)
    for case in ("causal", "soft_cap"):
        for direction in ("forward", "forward_and_backward"):
            measured = entries[case, direction, "scoremod"]
            assert measured["ms"] > 0 and 0 < measured["relative_error"] < 1e-5
    assert "cuDNN" in entries["causal", "forward", "jax_cudnn"]["refused"]
