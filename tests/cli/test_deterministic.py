"""Deterministic gradients through cuDNN: what they need of device memory, and what is refused before anything is built."""

import json
import re

import pytest

from built_command import ROOT
from cudnn_plans import compile_or_skip

DEVICES = ROOT / "src" / "backend" / "cudnn" / "devices"
SOFT_CAP = {"score_mod": [{"name": "soft_cap", "cap": 50}]}
CAUSAL = {"mask_mod": ["causal"]}


def problem_of(heads_q, heads_kv, seq_q, seq_kv, dim_qk, dim_v, program):
    return {
        "batch": 2, "heads_q": heads_q, "heads_kv": heads_kv, "seq_q": seq_q, "seq_kv": seq_kv, "dim_qk": dim_qk, "dim_v": dim_v,
        "dtype": "bf16", "program": program, "backward": True, "deterministic": True,
    }  # fmt: skip


def backward_of(scoremod, tmp_path, device, problem):
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(problem), encoding="utf-8")
    done = compile_or_skip(scoremod, path, "--device", DEVICES / device, "--backend", "cudnn", "-o", tmp_path / "plans", "--json")
    if "no pattern is known" in done.stdout:
        pytest.skip("no pattern table for the installed cuDNN")
    assert done.returncode in (0, 3), done.stderr
    return next(row for row in json.loads(done.stdout) if row["direction"] == "backward")


@pytest.mark.parametrize(
    ("device", "problem"),
    [
        ("h200.json", problem_of(4, 4, 512, 512, 128, 128, SOFT_CAP)),
        ("h200.json", problem_of(4, 2, 65, 1100, 192, 128, SOFT_CAP)),
        ("h200.json", problem_of(2, 2, 192, 64, 64, 64, CAUSAL)),
        ("a100.json", problem_of(4, 2, 65, 1100, 64, 64, SOFT_CAP)),
        ("rtx5090.json", problem_of(2, 2, 192, 64, 64, 64, CAUSAL)),
    ],
)
def test_the_workspace_is_known_before_anything_is_built(scoremod, tmp_path, monkeypatch, device, problem):
    monkeypatch.setenv("SCOREMOD_MAX_WORKSPACE", "0")
    refused = backward_of(scoremod, tmp_path, device, problem)
    assert not refused["stored"]
    predicted = int(re.search(r"needs a workspace of (\d+) bytes", refused["reasons"][0])[1])
    monkeypatch.delenv("SCOREMOD_MAX_WORKSPACE")
    plan = backward_of(scoremod, tmp_path, device, problem)
    assert plan["stored"], plan["reasons"]
    assert predicted <= plan["workspace_bytes"] <= predicted + 512


def test_the_limit_is_8_gib_unless_set(scoremod, tmp_path):
    # Two bytes for each of 2 batches, 16 heads, 16384 queries and 16384 keys.
    large = problem_of(16, 16, 16384, 16384, 128, 128, SOFT_CAP)
    refused = backward_of(scoremod, tmp_path, "h200.json", large)
    assert not refused["stored"]
    assert str(2 * 16 * 16384 * 16384 * 2 + 2 * 16 * 16384 * 4) in refused["reasons"][0]
    assert str(8 << 30) in refused["reasons"][0]
    assert "SCOREMOD_MAX_WORKSPACE" in refused["reasons"][0]


def test_a_limit_that_is_no_number_is_a_mistake(scoremod, tmp_path, monkeypatch):
    monkeypatch.setenv("SCOREMOD_MAX_WORKSPACE", "8G")
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(problem_of(2, 2, 64, 64, 64, 64, CAUSAL)), encoding="utf-8")
    device = DEVICES / "h200.json"
    done = compile_or_skip(scoremod, path, "--device", device, "-o", tmp_path)
    assert done.returncode == 2
    assert "SCOREMOD_MAX_WORKSPACE: expected a number of bytes, found '8G'" in done.stderr


def test_sm_100_has_no_deterministic_backward(scoremod, tmp_path):
    refused = backward_of(scoremod, tmp_path, "b200.json", problem_of(2, 2, 512, 512, 64, 64, SOFT_CAP))
    assert not refused["stored"]
    assert "do not compile with score functions on sm_100" in refused["reasons"][0]
