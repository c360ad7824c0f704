"""Values that are the same for every element: captured tensors, numbers that the function's text writes as tensors, and what is made of them."""

import random as pseudo_random

import pytest
import torch

from scoremod.torch import flex_attention

H = 3
# Numbers written as tensors: PyTorch makes each in another way.
NUMBERS = [
    lambda x: x,
    torch.tensor,
    torch.scalar_tensor,
    lambda x: torch.full((), x),
    lambda x: torch.full((1,), x),
    lambda x: torch.full((H,), x),
    lambda x: torch.zeros(()) + x,
    lambda x: torch.ones(H) * x,
]
UNARY = [
    lambda x: x + 1,
    lambda x: x * 0.5,
    torch.neg,
    torch.tanh,
    lambda x: x.detach(),
    lambda x: x.clone(),
    lambda x: torch.where(x > 0, x, 0.25 * x),
    lambda x: x.reshape(-1).max(),
    lambda x: x.sum(),
    lambda x: x.mean().item(),
    lambda x: x if bool((x < 0.3).all()) else x - 0.7,
]
BINARY = [torch.add, torch.sub, torch.mul, torch.maximum, lambda x, y: torch.where(x < y, x, y)]


def tree(choose, captured, depth=0):
    """A function of nothing, which computes a number or a tensor anew."""
    if depth == 4 or (depth > 1 and choose.random() < 0.3):
        if choose.random() < 0.4:
            return lambda: captured
        make, number = choose.choice(NUMBERS), round(choose.uniform(-2, 2), 2)
        return lambda: make(number)
    if choose.random() < 0.5:
        of, operation = tree(choose, captured, depth + 1), choose.choice(UNARY)
        return lambda: operation(torch.as_tensor(of()))
    x, y, operation = tree(choose, captured, depth + 1), tree(choose, captured, depth + 1), choose.choice(BINARY)
    return lambda: operation(torch.as_tensor(x()), torch.as_tensor(y()))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", range(60))
def test_uniform_values_are_what_pytorch_computes(number, seed):
    choose = pseudo_random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    captured = torch.randn(H, generator=generator)
    q, k, v = torch.randn(3, 1, H, 5, 8, generator=generator)
    made = tree(choose, captured)
    expected = torch.as_tensor(made()).float()  # computed where nothing is traced
    expected = expected if expected.shape == (H,) else expected.mean().expand(H).contiguous()

    def score_mod(score, b, h, q_idx, kv_idx):
        value = torch.as_tensor(made()).float()
        return score * (value[h] if value.shape == (H,) else value.mean())

    def plain(score, b, h, q_idx, kv_idx):
        return score * expected[h]

    for _ in range(2):  # traced, and kept if it may be
        torch.testing.assert_close(flex_attention(q, k, v, score_mod=score_mod), flex_attention(q, k, v, score_mod=plain))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("write", [torch.tensor, torch.scalar_tensor, lambda x: torch.full((), x)])
def test_a_captured_tensor_times_a_written_number_is_no_placeholder(write):
    """Found by the test of numbers that are asked: PyTorch computed the sum with what the placeholder of the product had in memory."""
    t = torch.tensor([2.0, 3.0, 4.0], requires_grad=True)
    q, k, v = torch.randn(3, 1, H, 5, 8)
    found = flex_attention(q, k, v, score_mod=lambda score, b, h, q_idx, kv_idx: score * (t * write(2.0) + 1).sum() + (t * write(3.0))[h])
    expected = flex_attention(q, k, v, score_mod=lambda score, b, h, q_idx, kv_idx: score * (t * 2.0 + 1).sum() + (t * 3.0)[h])
    torch.testing.assert_close(found, expected)
    (gradient,) = torch.autograd.grad(found.square().sum(), t)
    (wanted,) = torch.autograd.grad(expected.square().sum(), t)
    torch.testing.assert_close(gradient, wanted)
