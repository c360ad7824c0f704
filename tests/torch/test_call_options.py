"""Options of a call as they are given, eagerly and within a graph."""

import sys
from pathlib import Path

import torch

from scoremod.call_spec import NO_OFFSETS, CallSpec, Offsets
from scoremod.torch.call_options import options_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from wrong_options import EACH_FIELD


def test_a_call_has_each_of_its_options():
    call = options_of(EACH_FIELD)
    for name in (
        "place",
        "longest",
        "sink",
        "dtype_o",
        "amax_o",
        "factors",
        "dtype_kv",
        "new_sizes",
        "offsets",
        "scale",
        "deterministic",
        "backends",
        "dropout",
    ):
        assert getattr(call, name) == getattr(EACH_FIELD, name)
    assert call.max_scores


def test_pytorch_decides_whether_gradients_are_deterministic_where_the_call_does_not(monkeypatch):
    for answer in (False, True):
        monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda answer=answer: answer)
        for spec in (CallSpec(), CallSpec(scale=2.0)):
            assert options_of(spec).deterministic is answer
            assert options_of(spec._replace(deterministic=not answer)).deterministic is not answer


def test_offsets_that_are_not_given_stay_none_by_identity():
    for spec in (CallSpec(), CallSpec(scale=2.0)):
        assert options_of(spec).offsets is NO_OFFSETS
        assert options_of(spec._replace(offsets=Offsets())).offsets is not NO_OFFSETS
