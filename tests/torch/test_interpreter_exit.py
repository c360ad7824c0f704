"""An interpreter ends with 0 after and while threads call PyTorch's attention."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import interpreter_exit

PYTORCH = """
import torch
from scoremod.torch import flex_attention
q = torch.ones(1, 2, 64, 16, requires_grad=True)
def call():
    torch.autograd.grad(flex_attention(q, q, q, lambda score, b, h, i, j: torch.tanh(score)).sum(), q)
    with torch.no_grad():
        flex_attention(q, q, q)
"""


@pytest.mark.parametrize("end", interpreter_exit.ENDS)
def test_it_ends_with_0(end):
    interpreter_exit.check(PYTORCH, end)
