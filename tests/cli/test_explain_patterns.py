"""scoremod explain --device: which patterns cuDNN would run, what the others cost, and what is refused; and which engine would."""

import json

import pytest

from built_command import ROOT

DEVICES = ROOT / "src" / "backend" / "cudnn" / "devices"
CAUSAL = {
    "batch": 2, "heads_q": 4, "seq_q": 512, "dim_qk": 128, "dtype": "bf16", "backward": True,
    "program": {"score_mod": [{"name": "soft_cap", "cap": 50}], "mask_mod": ["causal"]},
}  # fmt: skip


@pytest.fixture(name="explain")
def explain_on_device(scoremod, tmp_path):
    def run(device, problem, *options, backend="cudnn"):
        path = tmp_path / "problem.json"
        path.write_text(json.dumps(problem), encoding="utf-8")
        chosen = ["--backend", backend] if backend else []
        done = scoremod("explain", path, "--device", DEVICES / device, *chosen, *options)
        if done.returncode == 4 and ("no cuDNN" in done.stderr or "no CUDA runtime" in done.stderr):
            pytest.skip(done.stderr)
        if done.returncode == 3 and "built without the cuDNN backend" in done.stderr:
            pytest.skip(done.stderr)
        if "no pattern is known" in done.stdout:
            pytest.skip("no pattern table for the installed cuDNN")
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_the_fastest_pattern_runs_and_the_others_have_their_cost(explain):
    forward, backward = json.loads(explain("h200.json", CAUSAL, "--json"))["patterns"]
    assert [forward["direction"], backward["direction"]] == ["forward", "backward"]
    for direction in (forward, backward):
        assert direction["architecture"] == "sm_90" and direction["verified"] and direction["plain_ms"] > 0
        band, compare = direction["candidates"]
        assert band["chosen"] and not compare["chosen"]
        assert "band.right" in [pattern["pattern"] for pattern in band["patterns"]]
        assert "band.right" not in [pattern["pattern"] for pattern in compare["patterns"]]
        times = {pattern["pattern"]: pattern["ms"] for pattern in band["patterns"] + compare["patterns"]}
        assert times["band.right"] < times["tanh.f32"]
        assert all(candidate["asked"] and candidate["refusal"] is None for candidate in (band, compare))
    assert backward["candidates"][0]["workspace_bytes"] > 2 * 4 * 512 * 128 * 4  # dQ in float32


def test_text_names_what_others_differ_by(explain):
    text = explain("h200.json", CAUSAL)
    shown = text[text.index("candidates, forward, sm_90") :]
    assert "runs: " in shown and "\n        band.right 0." in shown and "without band.right 0." in shown


def test_a_refused_candidate_has_cudnns_reason(explain):
    # tests/golden/cudnn_acceptance: the backward of documents is refused on sm_80.
    problem = {**CAUSAL, "program": {"mask_mod": ["documents"]}}
    forward, backward = json.loads(explain("a100.json", problem, "--json"))["patterns"]
    assert not forward["verified"] and any(candidate["chosen"] for candidate in forward["candidates"])
    assert backward["candidates"] and not any(candidate["chosen"] for candidate in backward["candidates"])
    assert all("sq broadcasted vectors" in candidate["refusal"] for candidate in backward["candidates"])


def test_what_no_pattern_can_do_has_reasons(explain):
    forward, backward = json.loads(explain("h200.json", {**CAUSAL, "dim_qk": 44}, "--json"))["patterns"]
    assert not forward["candidates"] and "dim_qk is 44" in forward["reasons"][0]
    assert not backward["candidates"] and "dim_qk is 44" in backward["reasons"][0]


@pytest.mark.parametrize(("program", "engine"), [({"score_mod": [{"name": "soft_cap", "cap": 50}]}, "cudnn"), ({"mask_mod": ["documents"]}, "kernels")])
def test_the_engine_that_is_predicted_to_be_faster_runs(explain, program, engine):
    problem = {**CAUSAL, "batch": 4, "heads_q": 16, "seq_q": 4096, "program": program}
    for direction in json.loads(explain("h200.json", problem, "--json", backend=None))["patterns"]:
        (runs,) = [candidate["backend"] for candidate in direction["candidates"] if candidate["chosen"]]
        assert runs == engine
        assert {candidate["backend"] for candidate in direction["candidates"]} == {"cudnn", "kernels"}


@pytest.mark.parametrize("device", ["h200.json", "a100.json"])
def test_backends_answer_for_the_device(explain, device):
    explanation = json.loads(explain(device, CAUSAL, "--json", backend=None))
    backends = {backend["backend"]: backend for backend in explanation["backends"]}
    forward, backward = ([candidate for candidate in direction["candidates"] if candidate["chosen"]] for direction in explanation["patterns"])
    for direction, chosen in ((forward, "chosen"), (backward, "chosen_backward")):
        assert [direction[0]["backend"]] == [name for name, backend in backends.items() if backend[chosen]]
    for name in ("cudnn", "kernels"):
        assert backends[name]["supported"] and not backends[name]["reasons"]
        assert backends[name]["forward_workspace_bytes"] is not None
    assert "cuda memory" in backends["cpu"]["why_not_chosen"]


def test_what_the_callers_order_decides_runs_alone(explain):
    for order in (["kernels", "cudnn"], ["cudnn", "kernels"]):
        for direction in json.loads(explain("h200.json", CAUSAL, "--json", "--backends", ",".join(order), backend=None))["patterns"]:
            assert direction["memory"] == "cuda"
            (runs,) = [candidate for candidate in direction["candidates"] if candidate["chosen"]]
            assert runs["backend"] == order[0] == direction["candidates"][0]["backend"]


def test_gradients_of_operands_say_what_writes_them(explain):
    problem = {**CAUSAL, "program": "operand slope: f32 [h]\nvalue = score * slope"}
    patterns = json.loads(explain("h200.json", problem, "--json", backend=None))["patterns"]
    assert [each["gradients"] for each in patterns[:2]] == [[], ["dq", "dk", "dv"]]
    assert [each["gradients"] for each in patterns[2:]] in ([["d_slope"]], [["dq", "dk", "dv", "d_slope"]])
    assert all(len([candidate for candidate in each["candidates"] if candidate["chosen"]]) == 1 for each in patterns)


def test_without_a_device_there_are_no_patterns(scoremod, tmp_path):
    path = tmp_path / "problem.json"
    path.write_text(json.dumps({**CAUSAL, "dtype": "f32"}), encoding="utf-8")
    assert json.loads(scoremod("explain", path, "--json").stdout)["patterns"] == []


def test_a_file_that_is_no_device_is_a_mistake(scoremod, tmp_path):
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(CAUSAL), encoding="utf-8")
    for text in ("", "{}"):
        (tmp_path / "device.json").write_text(text, encoding="utf-8")
        done = scoremod("explain", path, "--device", tmp_path / "device.json")
        assert done.returncode == 2 and "expected the properties of a CUDA device" in done.stderr
