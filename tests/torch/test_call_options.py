"""Options of a call as they are given, eagerly and within a graph."""

import pytest

import scoremod
from scoremod import Offsets
from scoremod.torch.call_options import NO_OFFSETS, CallSpec, options_of

EACH_FIELD = CallSpec(0.3, ("gemm",), True, Offsets(1, 2, 3, 4), "serve", False, 0.1, True, "ragged", (5, None), True, "e4m3", True, 4, "e5m2")


def test_a_graph_hands_back_what_was_given():
    assert all(given != default for given, default in zip(EACH_FIELD._replace(q_start=True), CallSpec()))
    for spec in (EACH_FIELD, EACH_FIELD._replace(q_start=True, offsets=Offsets()), CallSpec()):
        assert CallSpec.of_graph(spec.in_graph()) == spec
    assert CallSpec.of_graph(CallSpec().in_graph()).offsets is NO_OFFSETS


def test_a_call_has_each_of_its_options():
    call = options_of(EACH_FIELD)
    for name in ("place", "longest", "sink", "dtype_o", "amax_o", "factors", "dtype_kv", "new_sizes", "offsets", "scale", "deterministic"):
        assert getattr(call, name) == getattr(EACH_FIELD, name)
    assert (call.backends, call.dropout, call.max_scores) == (("gemm",), 0.1, True)


def test_options_that_make_no_sense_are_refused():
    with pytest.raises(scoremod.InvalidArgumentError, match="dropout_p: expected a number from 0 to below 1"):
        options_of(CallSpec(dropout_p=1.0))
    with pytest.raises(scoremod.InvalidArgumentError, match="scale: expected a number, found 'large'"):
        options_of(CallSpec(scale="large"))
