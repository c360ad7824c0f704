"""scoremod compile and scoremod device: plans built without a device, and what is said where something is missing."""

import json

import pytest

from cudnn_plans import DEVICES, compile_or_skip

PROBLEM = {
    "batch": 1,
    "heads_q": 2,
    "heads_kv": 1,
    "seq_q": 640,
    "seq_kv": 640,
    "dim_qk": 64,
    "dim_v": 64,
    "dtype": "bf16",
    "program": {"mask_mod": ["causal"]},
    "backward": True,
}


@pytest.fixture(name="problem")
def problem_file(tmp_path):
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(PROBLEM), encoding="utf-8")
    return path


def test_plans_of_both_directions_are_stored(scoremod, problem, tmp_path):
    store = tmp_path / "plans"
    done = compile_or_skip(scoremod, problem, "--device", DEVICES / "h200.json", "--backend", "cudnn", "-o", store, "--json")
    if "no pattern is known" in done.stdout:
        pytest.skip("no pattern table for the installed cuDNN")
    assert done.returncode == 0, done.stderr + done.stdout
    rows = json.loads(done.stdout)
    made = [(row["direction"], row["trial"]) for row in rows]
    assert made == [("forward", False), ("forward", True), ("backward", False), ("backward", True)]
    assert all(row["stored"] and row["plan_bytes"] > 10000 for row in rows)
    listed = scoremod("cache", "list", "--dir", store, "--json")
    labels = [entry["label"] for entry in json.loads(listed.stdout)["files"]]
    assert sorted(labels) == sorted(row["label"] for row in rows)


def test_a_bias_has_a_backward_more_that_writes_its_gradient(scoremod, problem, tmp_path):
    store = tmp_path / "plans"
    bias = {"score_mod": [{"name": "full_bias", "axes": "h, q_idx, kv_idx"}]}
    for dtype, backwards in ("bf16", 2), ("f32", 1):
        operands = [{"name": "bias", "dtype": dtype}]
        problem.write_text(json.dumps({**PROBLEM, "program": bias, "operands": operands}), encoding="utf-8")
        done = compile_or_skip(scoremod, problem, "--device", DEVICES / "h200.json", "--backend", "cudnn", "-o", store, "--json")
        assert done.returncode == 0, done.stderr + done.stdout
        rows = json.loads(done.stdout)
        by_cudnn = [row for row in rows if row["backend"] == "cudnn"]
        assert [row["direction"] for row in by_cudnn] == ["forward"] * 2 + ["backward"] * 2 * backwards
        # Kernels of scoremod's own compute the gradients that cuDNN does not write beside dq, dk and dv.
        assert [row["backend"] for row in rows[len(by_cudnn) :]] == ["operand_kernels"] * (2 - backwards)
        assert ("writes the gradient of 'bias' too" in [note for row in rows for note in row["notes"]]) == (backwards == 2)


def test_a_direction_that_cudnn_refuses_has_its_reason(scoremod, problem, tmp_path):
    # On sm_80 cuDNN's backward takes no operand along the rows beside its own two: tests/golden/cudnn_acceptance.
    one_token = {**PROBLEM, "seq_q": 1, "seq_kv": 1, "program": {"mask_mod": ["padding"]}}
    problem.write_text(json.dumps(one_token), encoding="utf-8")
    done = compile_or_skip(scoremod, problem, "--device", DEVICES / "a100.json", "--backend", "cudnn", "-o", tmp_path / "plans", "--json")
    assert done.returncode == 3, done.stderr + done.stdout
    backward = json.loads(done.stdout)[-1]
    assert backward["direction"] == "backward" and not backward["stored"]
    assert "\n" not in "".join(backward["reasons"])


@pytest.mark.parametrize("choice", [["--backend", "cpu"], ["--memory", "host"]], ids=" ".join)
def test_backends_whose_plans_are_not_kept_are_a_mistake(scoremod, problem, tmp_path, choice):
    done = compile_or_skip(scoremod, problem, "--device", DEVICES / "h200.json", *choice, "-o", tmp_path / "plans")
    assert done.returncode == 2, done.stderr
    assert "expected a backend whose plans are kept, such as cudnn or kernels, found cpu" in done.stderr


@pytest.mark.parametrize("text", ["", "[]", '{"deviceVer": 900}'])
def test_a_file_that_is_no_device_is_a_mistake(scoremod, problem, tmp_path, text):
    device = tmp_path / "device.json"
    device.write_text(text, encoding="utf-8")
    done = compile_or_skip(scoremod, problem, "--device", device, "-o", tmp_path / "plans")
    assert done.returncode == 2
    assert "expected the properties of a CUDA device" in done.stderr


def test_a_missing_device_file_is_a_mistake(scoremod, problem, tmp_path):
    done = scoremod("compile", problem, "--device", tmp_path / "none.json", "-o", tmp_path / "plans")
    assert done.returncode == 2
    assert "scoremod device" in done.stderr


@pytest.mark.parametrize("device", ["h200.json", "a100.json"])
def test_scoremods_own_kernels_are_stored(scoremod, problem, tmp_path, device):
    store = tmp_path / "plans"
    window = {"mask_mod": [{"name": "causal_sliding_window", "window": 500}]}
    problem.write_text(json.dumps({**PROBLEM, "program": window}), encoding="utf-8")
    done = scoremod("compile", problem, "--device", DEVICES / device, "--backend", "kernels", "-o", store, "--json")
    if done.returncode == 3 and "no NVRTC" in done.stdout + done.stderr:
        pytest.skip(done.stdout + done.stderr)
    assert done.returncode == 0, done.stderr + done.stdout
    rows = json.loads(done.stdout)
    # The trial's window is another one, and its kernels are the same.
    assert [(row["direction"], row["trial"]) for row in rows] == [("forward", False), ("backward", False)]
    assert all(row["stored"] and row["plan_bytes"] > 10000 for row in rows)
    assert rows[1]["workspace_bytes"] >= 2 * 2 * 640 * 4  # two numbers for each row


def chain(length):
    """A score function of so many sines in a row."""
    lines = ["let x0 = score", *(f"let x{i + 1} = sin(x{i})" for i in range(length))]
    return "\n".join([*lines, f"value = x{length}"])


def test_a_long_program_has_plans(scoremod, problem, tmp_path):
    """cudnn-frontend's own arrays end at 50 operations, past which it would write."""
    problem.write_text(json.dumps({**PROBLEM, "program": chain(25)}), encoding="utf-8")
    done = compile_or_skip(scoremod, problem, "--device", DEVICES / "h200.json", "--backend", "cudnn", "-o", tmp_path / "plans", "--json")
    assert done.returncode == 0, done.stderr + done.stdout
    assert all(row["stored"] for row in json.loads(done.stdout))


def test_a_program_that_no_graph_holds_is_refused(scoremod, problem, tmp_path):
    problem.write_text(json.dumps({**PROBLEM, "program": chain(300), "backward": False}), encoding="utf-8")
    done = compile_or_skip(scoremod, problem, "--device", DEVICES / "h200.json", "--backend", "cudnn", "-o", tmp_path / "plans", "--json")
    assert done.returncode == 3, done.stderr + done.stdout
    assert "needs 300 cuDNN nodes" in json.loads(done.stdout)[0]["reasons"][0]
