"""A forked child of a process that has used scoremod.torch computes what its parent does, also while another thread is in a call."""

import sys
from pathlib import Path

import pytest
import torch

from scoremod.torch import flex_attention

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from forked_child import succeeds_in_child, while_another_thread

# PyTorch's own OpenMP threads are no part of a child.
pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")]


def results(seq, scale=1.0):
    """A call with a score function, a bias that has a gradient, and a mask: its outputs and gradients."""
    random = torch.Generator().manual_seed(seq)
    q, k, v = (torch.randn(2, 4, seq, 32, generator=random, requires_grad=True) for _ in range(3))
    bias = torch.randn(4, generator=random, requires_grad=True)

    def score_mod(score, b, h, q_idx, kv_idx):
        return torch.tanh(score * scale) + bias[h]

    def mask_mod(b, h, q_idx, kv_idx):
        return kv_idx <= q_idx

    o, lse = flex_attention(q, k, v, score_mod=score_mod, mask_mod=mask_mod, return_lse=True)
    return [o, lse, *torch.autograd.grad(o.square().sum() + lse.sum(), (q, k, v, bias))]


def expect_equal(found, expected):
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_child_computes_what_its_parent_does():
    known, new = results(96), results(144, scale=0.5)
    expect_equal(results(96), known)

    def child():
        expect_equal(results(96), known)
        expect_equal(results(144, scale=0.5), new)

    assert succeeds_in_child(child)
    expect_equal(results(96), known)


@pytest.mark.parametrize("traces", [False, True])
def test_a_child_computes_while_another_thread_is_in_a_call(traces):
    known, new = results(96), results(144, scale=0.5)
    calls = []

    def call():
        results(224, scale=1.0 + len(calls) if traces else 1.0)
        calls.append(None)

    def child():
        expect_equal(results(96), known)
        expect_equal(results(144, scale=0.5), new)

    with while_another_thread(call):
        for _ in range(6):
            assert succeeds_in_child(child)
    assert len(calls) > 1
    expect_equal(results(96), known)
