"""Callers' mistakes raise the right kind of error, with words that help, and never crash."""

import os
import subprocess
import sys

import numpy as np
import pytest

import scoremod

PROBLEM = {
    "batch": 1,
    "heads_q": 2,
    "seq_q": 3,
    "dim_qk": 4,
    "backward": True,
    "program": "operand slope: f32 [h]; operand n: i32 [b]; value = score * slope; keep = kv_idx < n",
}
SHAPE = (1, 3, 2, 4)


@pytest.fixture
def compiled():
    return scoremod.Attention(PROBLEM)


@pytest.fixture
def inputs():
    return dict(q=np.ones(SHAPE, np.float32), k=np.ones(SHAPE, np.float32), v=np.ones(SHAPE, np.float32))


@pytest.fixture
def operands():
    return {"slope": np.ones(2, np.float32), "n": np.array([2], np.int32)}


@pytest.mark.parametrize(
    "change, words",
    [
        (dict(q=np.ones((1, 3, 2, 5), np.float32)), ["q:", "shape (1, 3, 2, 4)", "(1, 3, 2, 5)"]),
        (dict(k=np.ones(SHAPE)), ["k:", "float64", "astype(numpy.float32)"]),
        (dict(k=np.ones(SHAPE, ">f4")), ["k:", "float32", ">f4"]),
        (dict(v=[[1.0]]), ["v:", "NumPy array", "list"]),
        (dict(v=None), ["v:", "NumPy array", "NoneType"]),
        (dict(q=np.ma.masked_less(np.ones(SHAPE, np.float32), 2)), ["q:", "without a mask", "numpy.ma.MaskedArray", "filled("]),
        (dict(operands={"slope": np.ma.ones(2, np.float32), "n": np.ones(1, np.int32)}), ["operand 'slope'", "without a mask", "mask_mod"]),
        (dict(q=np.ones((1, 2, 3, 4), np.float32).transpose(0, 2, 1, 3)), ["q:", "strides (24, 8, 4, 1)", "ascontiguousarray"]),
        (dict(q=np.ones(SHAPE, np.float32)[:, ::-1]), ["q:", "strides", "-8"]),
        (dict(operands=None), ["operands:", "'slope'"]),
        (dict(operands={"slope": np.ones(2, np.float32)}), ["'n'"]),
        (dict(operands={"slope": np.ones(2, np.float32), "n": np.ones(1, np.int64)}), ["operand 'n'", "int64", "astype(numpy.int32)"]),
        (dict(operands={"slope": np.ones(3, np.float32), "n": np.ones(1, np.int32)}), ["operand 'slope'", "(2,)", "(3,)"]),
        (dict(operands={"slope": 1, "n": 1, "m": 1}), ["'m'", "slope, n"]),
        (dict(operands=[1.0]), ["operands:", "dict", "list"]),
        (dict(scale=float("nan")), ["scale", "nan"]),
        (dict(scale="1"), ["scale", "'1'"]),
        (dict(scale=10**400), ["scale"]),
        (dict(scale=1e300), ["scale"]),
        (dict(offsets={"query": 1}), ["offsets:", "scoremod.Offsets"]),
        (dict(offsets=(1, 2, 3, 4, 5)), ["offsets:", "scoremod.Offsets"]),
        (dict(offsets=(0, 0, 0, 2**31)), ["offsets.key", "32-bit"]),
        (dict(offsets=(0, 0.5, 0, 0)), ["offsets.head", "integer"]),
    ],
)
def test_bad_calls(compiled, inputs, operands, change, words):
    arguments = {**inputs, "operands": operands, **change}
    with pytest.raises(scoremod.InvalidArgumentError) as caught:
        compiled.forward(**arguments)
    for word in words:
        assert word in str(caught.value)


def test_misaligned_array(compiled, inputs, operands):
    memory = np.zeros(np.prod(SHAPE) * 4 + 1, np.uint8)
    inputs["q"] = memory[1:].view(np.float32).reshape(SHAPE)
    with pytest.raises(scoremod.InvalidArgumentError, match="align"):
        compiled.forward(**inputs, operands=operands)


def test_strides_between_elements(compiled, inputs, operands):
    """A field of packed records: 6 bytes from one float to the next are no whole number of floats."""
    records = np.zeros(2, [("slope", "<f4"), ("flag", "<u2")])
    records["slope"] = 1, 2
    with pytest.raises(scoremod.InvalidArgumentError, match=r"operand 'slope'.* 6 bytes.*ascontiguousarray"):
        compiled.forward(**inputs, operands={**operands, "slope": records["slope"]})


@pytest.mark.parametrize(
    "problem, words",
    [
        ("{", ["JSON"]),
        ("", ["JSON"]),
        ({}, ["batch", "add it"]),
        ({**PROBLEM, "heads_kv": 3}, ["heads_kv", "divisor"]),
        ({**PROBLEM, "bacth": 1}, ["bacth"]),
        ({**PROBLEM, "program": "value = scor"}, ["line 1, column 9", "^"]),
        ({**PROBLEM, "program": "value = q_idx"}, ["f32"]),
        ({**PROBLEM, "scale": float("inf")}, ["problem"]),
        ({**PROBLEM, "batch": object()}, ["problem"]),
        ("{}\0", ["NUL"]),
        (3, ["found"]),
    ],
)
def test_bad_problems(problem, words):
    with pytest.raises(scoremod.InvalidArgumentError) as caught:
        scoremod.Attention(problem)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "options, words",
    [
        (dict(backend="abacus"), ["abacus", "reference"]),
        (dict(threads=-1), ["threads"]),
        (dict(threads=2**40), ["threads", "32-bit"]),
        (dict(disabled_passes=["nap"]), ["nap"]),
        (dict(backend=7), ["backend", "7"]),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(scoremod.InvalidArgumentError) as caught:
        scoremod.Attention(PROBLEM, **options)
    for word in words:
        assert word in str(caught.value)


def test_backward_needs_a_problem_with_backward(inputs, operands):
    forward_only = scoremod.Attention({**PROBLEM, "backward": False})
    o, lse = forward_only.forward(**inputs, operands=operands, return_lse=True)
    with pytest.raises(scoremod.InvalidArgumentError, match="forward only"):
        forward_only.backward(**inputs, o=o, lse=lse, d_o=o, operands=operands)


@pytest.mark.parametrize("wanted, word", [(["n"], "'n'"), (["nobody"], "'nobody'")])
def test_gradient_of_what_has_none(compiled, inputs, operands, wanted, word):
    o, lse = compiled.forward(**inputs, operands=operands, return_lse=True)
    with pytest.raises(scoremod.InvalidArgumentError, match=word):
        compiled.backward(**inputs, o=o, lse=lse, d_o=o, operands=operands, d_operands=wanted)


def test_upstream_gradient_is_checked_under_its_own_name(compiled, inputs, operands):
    o, lse = compiled.forward(**inputs, operands=operands, return_lse=True)
    with pytest.raises(scoremod.InvalidArgumentError, match=r"^d_o: expected shape"):
        compiled.backward(**inputs, o=o, lse=lse, d_o=o[:, :2], operands=operands)


def test_one_call_takes_functions_where_the_other_bindings_do():
    inputs = np.random.default_rng(0).standard_normal((3, *SHAPE), np.float32)
    plain = scoremod.attention(*inputs)
    assert np.array_equal(scoremod.attention(*inputs, None, None), plain)
    changed = scoremod.attention(*inputs, "score * 2.0", "q_idx >= kv_idx")
    assert np.array_equal(changed, scoremod.attention(*inputs, score_mod="score * 2.0", mask_mod="q_idx >= kv_idx"))
    assert not np.array_equal(changed, plain)
    with pytest.raises(scoremod.InvalidArgumentError, match="score_mod: expected a text such as .*, found function"):
        scoremod.attention(*inputs, lambda score, *indices: score)


def test_one_call_attention_checks_too(inputs):
    with pytest.raises(scoremod.InvalidArgumentError, match="float64"):
        scoremod.attention(*(array.astype(np.float64) for array in inputs.values()))
    with pytest.raises(scoremod.InvalidArgumentError, match="4 dimensions"):
        scoremod.attention(inputs["q"][0], inputs["k"], inputs["v"])
    with pytest.raises(scoremod.InvalidArgumentError, match="v: expected shape"):
        scoremod.attention(inputs["q"], inputs["k"], inputs["v"][:, :2])


SLOPES = np.ones(2, np.float32)


@pytest.mark.parametrize(
    "change, words",
    [
        (dict(q=None), ["q:", "NumPy array", "NoneType"]),
        (dict(k=[[1.0]]), ["k:", "NumPy array", "list"]),
        (dict(k=np.ma.ones(SHAPE, np.float32)), ["k:", "without a mask", "numpy.ma.MaskedArray"]),
        (dict(operands={"slopes": ("h", np.ma.masked_greater(SLOPES, 0))}), ["operand 'slopes'", "without a mask", "filled("]),
        (dict(q=np.ones(SHAPE)), ["q:", "float32", "float64"]),
        (dict(score_mod=2.0), ["score_mod:", "text", "float"]),
        (
            dict(score_mod=lambda score, *indices: score),
            ["score_mod:", "text", "function", "write a function of Python as an expression", "scoremod.torch and scoremod.jax"],
        ),
        (dict(mask_mod=True), ["mask_mod:", "text", "bool"]),
        (dict(operands={"slopes": SLOPES}), ["'slopes'", "pair", "ndarray"]),
        (dict(operands={"slopes": (SLOPES, "h")}), ["'slopes'", "pair"]),
        (dict(operands={"slopes": ("h", 1.0)}), ["'slopes'", "NumPy array", "float"]),
        (dict(operands={"slopes": ("h", np.ones(2))}), ["slopes:", "float32", "float64"]),
        (dict(operands={"slopes": ("h", np.ones(2))}), ["astype(numpy.float32)"]),
        (dict(operands={"ids": ("b", np.arange(1))}), ["ids:", "int64", "astype(numpy.int32)"]),
        (dict(operands={"slopes": ("h", SLOPES)}), ["operands:", "'slopes'", "neither"]),
        (dict(operands={"slopes": ("h", SLOPES)}, score_mod="score * slope", mask_mod="kv_idx < 2"), ["'slopes'", "neither"]),
        (dict(operands=[SLOPES]), ["operands:", "dict", "list"]),
        (dict(scale="1"), ["scale", "'1'"]),
        (dict(scale=float("inf")), ["scale", "inf"]),
        (dict(layout=None), ["layout None"]),
        (dict(layout="BSHH"), ["layout 'BSHH'"]),
        (dict(q=np.ones((1, 2, 2, 0), np.float32)), ["dim_qk", "found 0"]),
    ],
)
def test_one_call_says_what_is_wrong(inputs, change, words):
    with pytest.raises(scoremod.InvalidArgumentError) as caught:
        scoremod.attention(**{**inputs, **change})
    for word in words:
        assert word in str(caught.value)


def test_kinds_of_errors():
    kinds = [scoremod.InvalidArgumentError, scoremod.UnsupportedError, scoremod.EnvironmentError, scoremod.BugError]
    assert all(issubclass(kind, scoremod.Error) for kind in kinds)
    assert issubclass(scoremod.InvalidArgumentError, ValueError)


def test_missing_library_is_an_environment_error(tmp_path):
    """In a process of its own, because the library is loaded once."""
    for place, words in ((tmp_path / "nowhere.so", "nowhere.so"), (tmp_path / "bad.so", "bad.so")):
        (tmp_path / "bad.so").write_bytes(b"no library")
        code = "import scoremod\ntry:\n  scoremod.version()\nexcept scoremod.EnvironmentError as e:\n  print(e)"
        environment = {**os.environ, "SCOREMOD_LIBRARY": str(place), "PYTHONPATH": os.pathsep.join(sys.path)}
        run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert words in run.stdout and "./dev build" in run.stdout
