"""The benchmark writes its report, also where JAX has no cuDNN to compare with."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_report(tmp_path):
    path = tmp_path / "report.json"
    options = "--batch 1 --heads 2 --seq 32 --dim 16 --calls 1 --dtype float32 --case causal --case soft_cap".split()
    paths = os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths, "SCOREMOD_COMMIT": "some"}
    subprocess.run([sys.executable, ROOT / "bench" / "jax" / "flex_attention.py", path, *options], env=environment, check=True)
    report = json.loads(path.read_text())
    assert report["commit"] == "some" and report["versions"]["jax"] and report["call_overhead"]["addition"]["ms"] > 0
    entries = {(x["case"], x["direction"], x["implementation"]): x for x in report["results"]}
    assert len(entries) == 2 * (3 + 2)
    for case in ("causal", "soft_cap"):
        for direction in ("forward", "forward_and_backward"):
            measured = entries[case, direction, "scoremod"]
            assert measured["ms"] > 0 and 0 < measured["relative_error"] < 1e-5
    assert "cuDNN" in entries["causal", "forward", "jax_cudnn"]["refused"]
