"""PyTorch's flex_attention answers wrong options as the other front ends do."""

import sys
from pathlib import Path

import pytest
import torch

from scoremod.torch import flex_attention

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from wrong_options import MISTAKES_OF_FLOAT8, MISTAKES_OF_SEQUENCES, mistakes

X = torch.ones(2, 2, 4, 8)
NAMES = {"dropout": "dropout_p"}
OPTIONS = [each for each in mistakes() if each.option != "backend"]  # PyTorch has backends alone


@pytest.mark.parametrize("mistake", OPTIONS, ids=str)
def test_of_a_call(mistake):
    mistake.is_raised_by(lambda **option: flex_attention(X, X, X, **option), NAMES)


@pytest.mark.parametrize("mistake", mistakes("dropout"), ids=str)
def test_of_a_call_like_one_that_is_remembered(mistake):
    for _ in range(3):
        flex_attention(X, X, X)
    mistake.is_raised_by(lambda **option: flex_attention(X, X, X, **option), NAMES)


@pytest.mark.parametrize("mistake", MISTAKES_OF_SEQUENCES, ids=str)
def test_of_sequences(mistake):
    x = X[0].transpose(0, 1)
    mistake.is_raised_by(lambda **option: flex_attention(x, x, x, q_offsets=torch.tensor([0, 4]), **option), NAMES)


@pytest.mark.parametrize("mistake", MISTAKES_OF_FLOAT8, ids=str)
def test_of_float8(mistake):
    x = X.to(torch.float8_e4m3fn)
    mistake.is_raised_by(lambda **option: flex_attention(x, x, x, **option), NAMES)


@pytest.mark.parametrize("name", ["enable_gqa", "return_lse", "return_amax_o", "deterministic", "dropout_p"])
def test_a_tensor_of_one_number_is_no_option(name):
    with pytest.raises(TypeError, match=rf"{name}: expected .*, found Tensor of shape \(\) and dtype torch.bool"):
        flex_attention(X, X, X, **{name: torch.tensor(True)})
