"""Python decides about every field of a problem: a field that is added is written, or left out here with the reason."""

import json
from pathlib import Path

import numpy as np
import pytest

import scoremod
from scoremod import one_call

SCHEMA = Path(__file__).resolve().parents[2] / "docs" / "reference" / "problem.schema.json"
# Fields of files, which say nothing of the problem itself.
OF_FILES = {"$schema", "description", "inputs", "seed"}
FIELDS = set(json.loads(SCHEMA.read_text(encoding="utf-8"))["properties"]) - OF_FILES
# One layout for all four; `scoremod.attention` copies what lies otherwise, and XLA gives dense arrays.
BY_LAYOUT = {"q", "k", "v", "o"}
# Fields for layouts and ends of tensors that arrays of NumPy and JAX do not have.
PLACES = {"tokens_q", "tokens_kv", "paged", "dtype_o", "d_o", "dq", "dk", "dv"}
# Fields of FP8 problems alone, which `scoremod.attention` refuses.
OF_FLOAT8 = {"dtype_d_o", "dtype_gradients", "amax_o", "amax_gradients"}
# The dtype of an FP8 KV cache, which has no gradients.
OF_CACHES = {"dtype_kv"}
PLACES |= OF_FLOAT8 | OF_CACHES


def test_the_schema_has_what_the_library_understands():
    """The library writes every field of its problem; `layout` is a file's shorthand for q, k, v and o."""
    smallest = {"batch": 1, "heads_q": 1, "seq_q": 1, "dim_qk": 1}
    gradients = dict.fromkeys(("d_o", "dq", "dk", "dv"), "THD")
    # Absent fields are left out; keys are ragged or paged, not both.
    given = (
        {**smallest, **gradients, "tokens_q": 1, "tokens_kv": 1, "dtype_o": "f32", "scale": 1.0},
        {**smallest, **dict.fromkeys(OF_FLOAT8, "f32"), "dtype": "e4m3", "amax_o": True, "amax_gradients": True, "backward": True},
        {**smallest, "dtype_kv": "e4m3", "lengths": {"kv": True}, "paged": {"block_size": 1, "blocks": 1, "blocks_per_sequence": 1}},
    )
    understood = {field for problem in given for field in scoremod.Attention(problem).problem}
    assert understood == FIELDS - {"layout"}


def test_one_call_decides_about_each(monkeypatch):
    written = {}
    bound = {}

    class Recorder:
        def __init__(self, problem, backend):
            written.update(problem)

        def forward(self, *arrays, **options):
            bound.update(options)

    monkeypatch.setattr(one_call, "Attention", Recorder)
    q = np.ones((1, 2, 3, 4), np.float32)
    scoremod.attention(q, q, q, scale=1.0)
    assert bound["scale"] == 1.0
    # It has no backward and no shards; the scale and the LSE are asked of the call. Lengths are a mask_mod.
    assert (
        set(written)
        | BY_LAYOUT
        | PLACES
        | {"lengths", "sink", "dropout", "dropout_keys", "given_deltas", "max_logit", "scale", "backward", "stats", "index_offsets", "deterministic"}
        == FIELDS
    )


def test_jax_decides_about_each(monkeypatch):
    jax = pytest.importorskip("jax")
    from scoremod import problem
    from scoremod.jax import flex_attention

    written = []
    make = problem.ProblemTemplate.text
    monkeypatch.setattr(problem.ProblemTemplate, "text", lambda *arguments: written.append(make(*arguments)) or written[-1])
    q = jax.numpy.ones((1, 2, 3, 4))
    flex_attention(q, q, q, scale=0.75)
    problems = list(map(json.loads, written))
    # Shards see true positions by operands that hold their offsets; the scale is asked of the call. Lengths are a
    # mask_mod that captures them.
    assert problems and all(
        set(each) | BY_LAYOUT | PLACES | {"lengths", "sink", "dropout", "dropout_keys", "given_deltas", "max_logit", "scale", "index_offsets"} == FIELDS
        for each in problems
    )
