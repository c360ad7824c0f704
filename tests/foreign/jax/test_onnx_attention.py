"""ONNX's node tests of Attention and FlexAttention, with the data of its wheel, through NumPy and through JAX."""

import dataclasses

import jax
import numpy as np
import onnx_nodes
import onnx_ways as ways
import pytest
from error_ratios import held

import scoremod
from scoremod.jax import flex_attention

ATTENTION, FLEX = onnx_nodes.names("attention_"), onnx_nodes.names("flexattention")
WAYS = {"numpy": ways.by_library, "jax": ways.by_jax}
# Refused cases, in which ways, each with a kind (conftest.py) and the word that the message has. prob_mod is a function of the weights.
REFUSED = {
    ("flexattention_double", "numpy"): "dtype: float64",
    ("flexattention_double", "jax"): "dtype: float64",
    ("flexattention_prob_mod", "numpy"): "not offered: prob_mod",
    ("flexattention_prob_mod", "jax"): "not offered: prob_mod",
}


def test_the_wheel_brings_all_cases():
    assert (len(ATTENTION), len(FLEX)) == (64, 11)


def held_output(name, way, node, problem):
    """The ratio of a node's first output, against what ONNX computed."""
    o, _ = WAYS[way](problem)
    assert o.dtype == node.outputs["Y"].dtype
    truth, *_ = ways.by_formula(problem)
    return held(name, node.result(np.asarray(o)), node.outputs["Y"], node.result(truth), float(np.finfo(o.dtype).eps))


def held_scores(name, way, node, problem):
    """The ratio of a node's last output: the scores before the cap (0), after it (1), after the mask (2), or the weights (3).

    No call returns them. Values that are the unit matrix make the output the weights, and the LSE makes those scores again.
    """
    mode = node.attributes.get("qk_matmul_output_mode", 0)
    units = np.broadcast_to(np.eye(problem.shape[3], dtype=problem.v.dtype), (*problem.v.shape[:2], *[problem.shape[3]] * 2))
    changes = [dict(cap=0.0, bias=None, keep=None, offset=None), dict(bias=None, keep=None, offset=None), {}, {}][mode]
    problem = dataclasses.replace(problem, v=np.ascontiguousarray(units), **changes)
    weights, lse = map(np.asarray, WAYS[way](problem))
    truth, scores, truth_lse = ways.by_formula(problem)
    eps = float(np.finfo(weights.dtype).eps)
    if mode == 3:
        return held(name, weights, node.outputs["qk_matmul_output"], truth, eps)
    with np.errstate(divide="ignore"):
        found = np.log(weights) + lse[..., None]
    # The LSE and the logarithm round by their own magnitudes.
    return held(name, found, node.outputs["qk_matmul_output"], scores, eps, scale=np.abs(truth_lse).max() + np.abs(scores[np.isfinite(scores)]).max())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name, way, record):
    node = onnx_nodes.load(name)
    problem = ways.problem_of(node)
    ratios = [held_output(name, way, node, problem)]
    for cache, part in (("present_key", problem.k), ("present_value", problem.v)):
        if cache in node.outputs:
            np.testing.assert_array_equal(node.outputs[cache], part)
    if "qk_matmul_output" in node.outputs:
        ratios.append(held_scores(name, way, node, problem))
    record("ONNX Attention", name, way, max(ratios))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FLEX)
def test_flex_attention(name, way, record):
    node = onnx_nodes.load(name)
    refused = REFUSED.get((name, way))
    if refused is None:
        return record("ONNX FlexAttention", name, way, held_output(name, way, node, ways.problem_of(node)))
    with pytest.raises(scoremod.Error) as error:
        refuse(way, node)
    assert refused.split(": ")[1] in str(error.value)
    record("ONNX FlexAttention", name, way, refused=refused)


def refuse(way, node):
    """The call that is to be refused."""
    given = [node.part(name) for name in "QKV"]
    with jax.enable_x64(True):
        if "prob_mod" not in node.attributes:
            return WAYS[way](ways.problem_of(node))
        call = scoremod.attention if way == "numpy" else flex_attention
        call(*given, layout="BHSD", prob_mod=lambda p, b, h, q_idx, kv_idx: p * 0.5)


def test_float64_runs_on_xla(record):
    node = onnx_nodes.load("flexattention_double")
    with jax.enable_x64(True):
        o, _ = ways.by_jax(ways.problem_of(node), backend="xla")
    truth, *_ = ways.by_formula(ways.problem_of(node))
    ratio = held("flexattention_double", np.asarray(o), node.outputs["Y"], truth, float(np.finfo(np.float64).eps))
    record("ONNX FlexAttention", "flexattention_double", "jax, backend=xla", ratio)


@pytest.mark.parametrize("way", WAYS)
def test_a_wrong_offset_or_cap_is_found(way):
    """A negative control: the tolerance tells a causal mask by one key, and a cap from none."""
    for name, change in (("attention_4d_causal", {"offset": 1}), ("attention_4d_softcap", {"cap": 0.0}), ("attention_4d_gqa_attn_mask", {"bias": None})):
        node = onnx_nodes.load(name)
        with pytest.raises(AssertionError, match="from float64"):
            o, _ = WAYS[way](dataclasses.replace(ways.problem_of(node), **change))
            truth, *_ = ways.by_formula(ways.problem_of(node))
            held(name, np.asarray(o), node.outputs["Y"], truth, float(np.finfo(o.dtype).eps))
