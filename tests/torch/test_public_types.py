"""The public functions of the PyTorch binding have types."""

import inspect
import re

import pytest

import scoremod.torch

OWN = [name for name in scoremod.torch.__all__ if inspect.isfunction(each := getattr(scoremod.torch, name)) and each.__module__.startswith("scoremod.")]


def test_these_are_the_functions():
    assert set(OWN) == {
        "append_to_pages",
        "at_tree_depths",
        "context_parallel_attention",
        "draw",
        "explain",
        "fallback_counts",
        "flex_attention",
        "fused_attention",
        "merge",
        "register",
        "stripe",
        "support",
        "tree_depths",
        "tree_mask",
        "unstripe",
    }


@pytest.mark.parametrize("name", OWN)
def test_public_functions_have_types(name):
    signature = inspect.signature(getattr(scoremod.torch, name))
    assert [each for each, parameter in signature.parameters.items() if parameter.annotation is inspect.Parameter.empty] == []
    assert signature.return_annotation is not inspect.Signature.empty


@pytest.mark.parametrize("name", OWN)
def test_docstrings_say_every_parameter(name):
    text, parameters = inspect.getdoc(getattr(scoremod.torch, name)), list(inspect.signature(getattr(scoremod.torch, name)).parameters)
    section = re.search(r"^Parameters\n-+\n(.*?)(?=\n\w[^\n]*\n-|\Z)", text, re.DOTALL | re.MULTILINE)
    lines = [line.split(":")[0] for line in section[1].splitlines() if line and not line.startswith(" ")] if section else []
    assert sorted(each.strip("* ") for line in lines for each in line.split(",")) == sorted(parameters)
    returns_nothing = inspect.signature(getattr(scoremod.torch, name)).return_annotation in (None, "None")
    assert "\nReturns\n---" in text or returns_nothing
    assert "\nRaises\n---" in text or not parameters


def test_dir_shows_public_names_alone():
    assert {name for name in dir(scoremod.torch) if not name.startswith("__")} - {"flash_attn", "transformers"} == set(scoremod.torch.__all__)
