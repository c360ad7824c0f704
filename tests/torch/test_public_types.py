"""The public functions of the PyTorch binding have types."""

import inspect

import pytest

import scoremod.torch

OWN = [name for name in scoremod.torch.__all__ if inspect.isfunction(each := getattr(scoremod.torch, name)) and each.__module__.startswith("scoremod.")]


def test_these_are_the_functions():
    assert set(OWN) == {"context_parallel_attention", "draw", "explain", "flex_attention", "merge", "stripe", "support", "unstripe"}


@pytest.mark.parametrize("name", OWN)
def test_public_functions_have_types(name):
    signature = inspect.signature(getattr(scoremod.torch, name))
    assert [each for each, parameter in signature.parameters.items() if parameter.annotation is inspect.Parameter.empty] == []
    assert signature.return_annotation is not inspect.Signature.empty
