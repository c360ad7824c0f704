"""Other projects' score and mask functions in PyTorch: forward and all gradients against dense attention in float64."""

import definitions
import gym_definitions
import dense_reference as dense
import numpy as np
import pytest
import torch
from errors_in_torch import largest_ratio

from scoremod.torch import flex_attention

SUITES = definitions.SUITES | gym_definitions.SUITES
CASES = [(suite, name) for suite, cases in SUITES.items() for name in cases]


def real(x, score):
    return x.to(score.dtype)


def fused(q, k, v, score_mod, mask_mod):
    return flex_attention(q, k, v, score_mod, mask_mod=mask_mod, return_lse=True, enable_gqa=True)


@pytest.mark.parametrize(("suite", "name"), CASES, ids=lambda x: x)
def test_definition(suite, name, foreign_seed, record):
    case = SUITES[suite][name]
    floats, integers = case.arrays(np.random.default_rng(foreign_seed), case.sizes)
    random = torch.Generator().manual_seed(foreign_seed)
    heads = (case.heads[0], case.heads[1], case.heads[1])
    seqs = (case.seq[0], case.seq[1], case.seq[1])
    tensors = [torch.randn(case.batch, h, s, 16, generator=random) for h, s in zip(heads, seqs)]
    integers = [torch.as_tensor(each) for each in integers]
    make = lambda *captured: case.make(torch, real, *captured, *integers)  # noqa: E731
    found, plain, truth = dense.check(fused, tensors, [torch.as_tensor(each) for each in floats], make, random)
    record(suite, name, "torch", largest_ratio(found, plain, truth))
