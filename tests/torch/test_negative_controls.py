"""The comparison with dense attention sees planted faults, in each of its outputs and gradients."""

import dense_reference as dense
import modifiers
import pytest
import torch

from scoremod.torch import flex_attention


def fused(q, k, v, score_mod, mask_mod):
    return flex_attention(q, k, v, score_mod, mask_mod=mask_mod, return_lse=True)


class _Scaled(torch.autograd.Function):
    """A tensor as it is, whose gradient is off by a hundredth."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 1.01


def with_wrong_output(q, k, v, score_mod, mask_mod):
    o, lse = fused(q, k, v, score_mod, mask_mod)
    return o + 1e-3 * o.detach(), lse


def with_wrong_lse(q, k, v, score_mod, mask_mod):
    o, lse = fused(q, k, v, score_mod, mask_mod)
    return o, lse / torch.log(torch.tensor(2.0))  # to base 2


def with_wrong_mask(q, k, v, score_mod, mask_mod):
    return fused(q, k, v, score_mod, lambda b, h, q_idx, kv_idx: q_idx > kv_idx)


def with_wrong_query_gradient(q, k, v, score_mod, mask_mod):
    return fused(_Scaled.apply(q), k, v, score_mod, mask_mod)


def with_wrong_value_gradient(q, k, v, score_mod, mask_mod):
    return fused(q, k, _Scaled.apply(v), score_mod, mask_mod)


@pytest.mark.parametrize(
    ("faulty", "named"),
    [(with_wrong_output, "o"), (with_wrong_lse, "lse"), (with_wrong_mask, "o"), (with_wrong_query_gradient, "dq"), (with_wrong_value_gradient, "dv")],
)
def test_a_planted_fault_is_found(faulty, named, random):
    captured, make = modifiers.cases((2, 4, 19, 19), random)["alibi"]
    tensors = [torch.randn(2, 4, 19, 16, generator=random) for _ in range(3)]
    dense.check(fused, tensors, captured, make, random)
    with pytest.raises(AssertionError, match=f"^{named}"):
        dense.check(faulty, tensors, captured, make, random)


def test_a_wrong_gradient_of_a_captured_tensor_is_found(random):
    captured, make = modifiers.cases((2, 4, 19, 19), random)["alibi"]
    tensors = [torch.randn(2, 4, 19, 16, generator=random) for _ in range(3)]
    wrong = lambda slopes: make(_Scaled.apply(slopes) if slopes.dtype == torch.float32 else slopes)  # noqa: E731
    calls = []

    def only_fused(*captured):
        # The fused call comes first; the dense ones keep the true gradient.
        calls.append(captured)
        return (wrong if len(calls) == 1 else make)(*captured)

    with pytest.raises(AssertionError, match="^output 5"):
        dense.check(fused, tensors, captured, only_fused, random)
