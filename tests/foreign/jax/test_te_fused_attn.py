"""TransformerEngine's fused_attn and its module on the matrix of its tests, drawn anew in each run: outputs and gradients against float64.

Dropout is off.
"""

import collections
import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
import te_problems
from te_calls import check, way_of
from te_problems import BATCH, CASES

import scoremod
from scoremod.jax import transformer_engine as te

SUITE = "TransformerEngine fused_attn"


@pytest.mark.parametrize(("mask", "layout"), CASES)
def test_problem(mask, layout, foreign_seed, record):
    random = np.random.default_rng(foreign_seed)
    problem = te_problems.draw(mask, layout, random)
    print(problem)
    record(SUITE, f"{mask}, {layout.upper()}", way_of(layout), check(problem, random))


def test_every_kind_is_drawn():
    drawn = [te_problems.draw(mask, layout, np.random.default_rng(seed)) for seed in range(40) for mask, layout in CASES]
    for of, expected in (("bias", te_problems.BIASES), ("softmax", te_problems.SOFTMAXES), ("window", te_problems.WINDOWS), ("heads_kv", (1, 2, 4))):
        counts = collections.Counter(getattr(problem, of) for problem in drawn)
        assert set(counts) == set(expected) and min(counts.values()) > len(drawn) / 20, counts
    assert {problem.described_by for problem in drawn} == {"lengths", "segments", "offsets"}
    assert any(len(row) == 3 for problem in drawn for row in problem.sequences)
    assert sum(problem.dims[0] != problem.dims[1] for problem in drawn) > len(drawn) / 10
    assert sum(problem.seq[0] != problem.seq[1] for problem in drawn) > len(drawn) / 4


# Planted fault -> (mask, layout, fields of a problem that must show it, what is called instead).
FAULTS = {
    "no mask": ("causal", "bs3hd", {}, {"mask": "no_mask"}),
    "the other diagonal": ("causal_bottom_right", "bshd_bshd_bshd", {"seq": (12, 20)}, {"mask": "causal"}),
    "a window that is one wider": ("causal", "sbhd_sbhd_sbhd", {"window": (3, 0)}, {"window": (4, 0)}),
    "a bias before the scale": ("no_mask", "bshd_bs2hd", {"bias": "1hss", "bias_type": "post_scale_bias"}, {"bias_type": "pre_scale_bias"}),
    "no term beside the softmax": ("causal", "bs3hd", {"softmax": "off_by_one"}, {"softmax": "vanilla"}),
    "another scale": ("no_mask", "sb3hd", {"scale": 0.3, "dims": (16, 16)}, {"scale": 0.305}),
    "sequences that see each other": ("padding_causal", "thd_thd_thd", {"described_by": "offsets"}, {"sequences": (((0, 12, 0, 12),),) * BATCH}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault, foreign_seed):
    """Negative controls."""
    mask, layout, fields, planted = FAULTS[fault]
    random = np.random.default_rng(foreign_seed)
    plain = {"window": None, "bias": None, "bias_type": "no_bias", "softmax": "vanilla", "dtype": "float32", "seq": (16, 16)} | fields
    drawn = te_problems.draw(mask, layout, random)
    whole = ((0, plain["seq"][0], 0, plain["seq"][1]),)
    rows = (((0, 5, 0, 5), (5, 9, 6, 10)),) * BATCH if layout[0] == "t" else (whole,) * BATCH
    problem = dataclasses.replace(drawn, sequences=rows, **plain)
    check(problem, random)
    with pytest.raises(AssertionError, match="from float64"):
        check(problem, random, dataclasses.replace(problem, **planted))


# TransformerEngine takes these arguments: case -> (arguments, message). The page's table lists the cases.
REFUSED = {
    "context parallelism, ring": ({"context_parallel_strategy": te.CPStrategy.RING}, "context_parallel_strategy: expected"),
    "context parallelism, all-gather": ({"context_parallel_strategy": te.CPStrategy.ALL_GATHER}, "context_parallel_strategy: expected"),
    "context parallelism, axis": ({"context_parallel_axis": "cp"}, "context_parallel_axis: expected"),
    "context parallelism, balanced": ({"context_parallel_causal_load_balanced": True}, "context_parallel_causal_load_balanced: expected"),
    "stripes": ({"stripe_size": 1}, "stripe_size: expected"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name, record):
    arguments, message = REFUSED[name]
    qkv = [jnp.ones((1, 4, 2, 8))] * 3
    with pytest.raises(scoremod.InvalidArgumentError, match=message):
        te.fused_attn(tuple(qkv), None, None, None, "no_bias", "no_mask", "bshd_bshd_bshd", "vanilla", None, 0.0, True, **arguments)
    record(SUITE, name, "fused_attn", refused=f"not offered: {next(iter(arguments))}")


@pytest.mark.parametrize("mask", ["no_mask", "causal", "causal_bottom_right"])
def test_tokens_without_padding_are_refused(mask):
    """TransformerEngine refuses them as well: such a layout has sequences."""
    with pytest.raises(scoremod.InvalidArgumentError, match="attn_mask_type: expected a type with padding beside qkv_layout="):
        te.fused_attn((jnp.ones((1, 4, 3, 2, 8)),), None, None, None, "no_bias", mask, te.QKVLayout.T3HD, "vanilla", None, 0.0, True)
