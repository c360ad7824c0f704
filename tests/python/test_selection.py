"""Which backends may run a problem, and what they say of it."""

import json
import pickle

import pytest
import scoremod

PROBLEM = {"batch": 1, "heads_q": 1, "seq_q": 8, "seq_kv": 8, "dim_qk": 8}


@pytest.mark.parametrize(
    ("backends", "runs"), [(None, "cpu"), ("reference", "reference"), ("reference,cpu", "reference"), (["-cpu"], "reference"), ("-reference", "cpu")]
)
def test_backends(backends, runs):
    attention = scoremod.Attention(PROBLEM, backends=backends)
    assert attention.backend == runs
    assert pickle.loads(pickle.dumps(attention)).backend == runs


def test_environment(monkeypatch):
    monkeypatch.setenv("SCOREMOD_BACKENDS", "-cpu")
    assert scoremod.Attention(PROBLEM).backend == "reference"
    assert scoremod.Attention(PROBLEM, backends="cpu").backend == "cpu"


@pytest.mark.parametrize(
    "wrong",
    [
        *({"backends": "gpu"}, {"backends": ["-gpu"]}, {"backends": "cpu", "backend": "cpu"}, {"backends": 3}, {"backends": [3]}),
        *({"max_workspace": -1}, {"new_sizes": "later"}, {"new_sizes": 1}, {"memory": "disk"}),
    ],
)
def test_misuse(wrong):
    with pytest.raises(scoremod.InvalidArgumentError):
        scoremod.Attention(PROBLEM, **wrong)


def test_nothing_left():
    with pytest.raises(scoremod.UnsupportedError, match="the caller"):
        scoremod.Attention(PROBLEM, backends="-cpu,-reference")


def test_static_support():
    answers = {answer["backend"]: answer for answer in scoremod.support({**PROBLEM, "dim_qk": 100}, level="static")}
    assert answers["cpu"]["supported"] and answers["cpu"]["forward_supported"] and answers["cpu"]["refusals"] == []
    if "cudnn" in answers:
        ids = {refusal["id"] for refusal in answers["cudnn"]["refusals"]}
        assert {"dtype", "head_dim"} <= ids
        assert len(answers["cudnn"]["reasons"]) == len(answers["cudnn"]["refusals"])
    with pytest.raises(scoremod.InvalidArgumentError, match="level"):
        scoremod.support(PROBLEM, level="quick")


def device(compute_capability):
    """A device's properties, as `scoremod device` prints them."""
    fields = {"deviceVer": 10 * compute_capability, "multiProcessorCount": 132, "maxSharedMemoryPerBlockOptin": 232448, "l2CacheSize": 2**26}
    return json.dumps({**fields, "deviceName": "A GPU"})


def test_support_for_a_device_elsewhere():
    problem = {**PROBLEM, "dim_qk": 64, "dtype": "bf16"}

    def answers(**options):
        return {answer["backend"]: answer for answer in scoremod.support(problem, level="static", **options)}

    hopper, volta = answers(device_properties=device(90)), answers(device_properties=device(70))
    assert hopper["cpu"] == volta["cpu"] == answers()["cpu"]
    if "kernels" not in hopper:
        pytest.skip("built without a backend of a device")
    assert hopper["kernels"]["supported"]
    assert "no_device" not in {refusal["id"] for refusal in volta["kernels"]["refusals"]}
    assert any("7.0" in reason for reason in volta["kernels"]["reasons"])


def test_explaining_for_a_device_elsewhere_chooses_its_backend(tmp_path):
    problem = {**PROBLEM, "dim_qk": 64, "dtype": "bf16"}
    try:
        explanation = scoremod.explain(problem, backends="kernels", device_properties=device(90))
    except (scoremod.EnvironmentError, scoremod.UnsupportedError, scoremod.InvalidArgumentError) as error:
        if "CUDA runtime" in str(error) or "NVRTC" in str(error) or "without a backend" in str(error) or "has no backend" in str(error):
            pytest.skip(str(error))
        raise
    chosen = [each["backend"] for each in explanation["backends"] if each["chosen"]]
    assert chosen == ["kernels"]
    assert explanation["patterns"][0]["architecture"] == "sm_90"


@pytest.mark.parametrize("wrong", [{"device_properties": "{}"}, {"device_properties": 90}, {"device_properties": device(90), "device": 0}])
def test_misuse_of_a_device_elsewhere(wrong):
    with pytest.raises(scoremod.InvalidArgumentError, match="device"):
        scoremod.support(PROBLEM, level="static", **wrong)
