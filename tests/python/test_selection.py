"""Which backends may run a problem, and what they say of it."""

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
