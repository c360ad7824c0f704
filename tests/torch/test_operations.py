"""Operations of PyTorch on a score: value and derivative are PyTorch's, at kinks and for arguments that are left out, too."""

import pytest
import torch
import torch.nn.functional as F

from scoremod.torch import flex_attention

SCORES = torch.tensor([-30.0, -6.0, -3.0, -2.0, -1.5, -1.0, -0.7, -0.25, 1e-3, 0.3, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 6.0, 25.0])
LOW, HIGH = torch.tensor(-1.0), torch.tensor(2.0)


@pytest.mark.parametrize(
    "function",
    [
        lambda s: s.clamp(-1, 2),
        lambda s: s.clamp(min=-1.0),
        lambda s: s.clamp_max(2),
        lambda s: s.clamp(2, 1),
        lambda s: s.clamp(LOW, HIGH),
        lambda s: s.clamp_min(HIGH),
        lambda s: s.int().clamp(-1, 2) * s,
        lambda s: F.hardtanh(s),
        lambda s: F.hardtanh(s, -2.0),
        lambda s: F.hardtanh_(s.clone(), -2.0),
        lambda s: F.hardtanh(s.clone(), max_val=3.0, inplace=True),
        lambda s: F.hardtanh(s.clone(), inplace=True),
        lambda s: F.leaky_relu(s.clone(), inplace=True),
        torch.atan,
        lambda s: torch.atan2(s, HIGH),
        lambda s: torch.atan2(HIGH, s),
        torch.erfc,
        lambda s: torch.asin(s / 32),
        lambda s: torch.acos(s / 32),
        lambda s: torch.atanh(s / 32),
        torch.asinh,
        lambda s: torch.acosh(s.abs() + 1.5),
        lambda s: torch.sinh(s / 4),
        lambda s: torch.cosh(s / 4),
    ],
)
def test_values_and_derivatives_are_pytorchs(function):
    # The LSE over one key is its modified score.
    one = torch.ones(1, 1, 1, 1)
    query = SCORES.reshape(1, 1, -1, 1).clone().requires_grad_()
    lse = flex_attention(query, one, one, lambda score, *indices: function(score), scale=1.0, return_lse=True)[1]
    found = torch.autograd.grad(lse.sum(), query)[0].flatten()
    scores = SCORES.clone().requires_grad_()
    expected = function(scores)
    torch.testing.assert_close(lse.flatten(), expected, rtol=2e-6, atol=1e-6)
    torch.testing.assert_close(found, torch.autograd.grad(expected.sum(), scores)[0], rtol=1e-5, atol=1e-6)
