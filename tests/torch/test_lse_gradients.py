"""The gradient of the log-sum-exp, which a backward gets through columns of the output's dtype."""

import pytest
import torch

from scoremod.torch import flex_attention

# Between two numbers of 8 and of 11 digits: neither dtype has it.
BETWEEN = 1 + 2**-9 + 2**-13


@pytest.mark.parametrize("sinks", [False, True])  # which get it by the sums of rows
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_keeps_the_digits_of_a_float32(dtype, sinks, random):
    q, k, v = (torch.randn(2, heads, 24, 16, generator=random).to(dtype) for heads in (4, 2, 2))
    slopes = torch.rand(4, generator=random, requires_grad=True)
    sink = torch.zeros(4) if sinks else None

    def gained(factor):
        def alibi(score, b, h, q_idx, kv_idx):
            return score - slopes[h] * (q_idx - kv_idx).abs()

        lse = flex_attention(q, k, v, alibi, sink=sink, enable_gqa=True, return_lse=True)[1]
        return torch.autograd.grad((factor * lse).sum(), slopes)[0]

    torch.testing.assert_close(gained(BETWEEN), BETWEEN * gained(1.0), rtol=3e-6, atol=0)
