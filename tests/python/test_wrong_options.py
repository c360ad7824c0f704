"""NumPy's front ends answer wrong options as the others do."""

import sys
from pathlib import Path

import numpy as np
import pytest

import scoremod

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from wrong_options import mistakes

X = np.ones((2, 4, 2, 8), np.float32)
PROBLEM = {"batch": 2, "seq_q": 4, "heads_q": 2, "dim_qk": 8, "backward": True}


@pytest.mark.parametrize("mistake", mistakes("scale", "return_lse", "backend"), ids=str)
def test_in_one_call(mistake):
    mistake.is_raised_by(lambda **option: scoremod.attention(X, X, X, **option), {})


@pytest.mark.parametrize("mistake", mistakes("scale", "return_lse", "offsets"), ids=str)
def test_in_a_call_of_what_is_compiled(mistake):
    attention = scoremod.Attention(PROBLEM)
    mistake.is_raised_by(lambda **option: attention.forward(X, X, X, **option), {})
    if mistake.option != "return_lse":
        o, lse = attention.forward(X, X, X, return_lse=True)
        mistake.is_raised_by(lambda **option: attention.backward(X, X, X, o, lse, o, **option), {})


@pytest.mark.parametrize("mistake", mistakes("backends", "backend", "new_sizes"), ids=str)
def test_in_what_is_compiled(mistake):
    mistake.is_raised_by(lambda **option: scoremod.Attention(PROBLEM, **option), {})
    mistake.is_raised_by(lambda **option: scoremod.OpenAttention(PROBLEM | {"seq_q": None}, **option), {})


@pytest.mark.parametrize("mistake", mistakes("backends", "backend"), ids=str)
def test_in_questions(mistake):
    mistake.is_raised_by(lambda **option: scoremod.explain(PROBLEM, **option), {})
    mistake.is_raised_by(lambda **option: scoremod.support(PROBLEM, **option), {})
