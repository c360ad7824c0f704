"""The options of a call, which all front ends share."""

import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import scoremod
from scoremod.call_spec import NO_OFFSETS, CallSpec, Offsets, checked, checked_longest, checked_start, check_flags

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from wrong_options import EACH_FIELD, MISTAKES_OF_SEQUENCES, mistakes


def test_options_are_frozen_and_hashable():
    with pytest.raises(AttributeError):
        EACH_FIELD.scale = 2.0
    given = CallSpec(scale=np.float32(0.5), backends="cpu, reference", offsets=[1, np.int64(2)], dropout=Fraction(1, 2))
    assert len({checked(given), checked(given), checked(CallSpec())}) == 2


def test_checked_options_are_values_of_python():
    given = CallSpec(scale=np.float64(0.5), backends=["cpu", "-cudnn"], deterministic=np.True_, offsets=[1, np.int64(2)], dropout=Fraction(1, 2), with_max=1)
    found = checked(given)
    assert found == CallSpec(scale=0.5, backends=("cpu", "-cudnn"), deterministic=True, offsets=Offsets(1, 2), dropout=0.5, with_max=True)
    assert (type(found.scale), type(found.dropout), type(found.offsets.head), found.deterministic, found.with_max) == (float, float, int, True, True)
    assert checked(CallSpec(backends=" cpu,, reference ")).backends == ("cpu", "reference")
    assert checked(CallSpec()) == CallSpec(backends=(), deterministic=False)
    assert checked(found) == found


def test_offsets_that_are_not_given_stay_none_by_identity():
    assert checked(CallSpec()).offsets is NO_OFFSETS
    assert checked(CallSpec(offsets=Offsets())).offsets is not NO_OFFSETS


def test_fields_that_no_caller_gives_stay():
    assert checked(EACH_FIELD) == EACH_FIELD


@pytest.mark.parametrize("mistake", mistakes("scale", "backends", "new_sizes", "deterministic", "dropout", "offsets"), ids=str)
@pytest.mark.parametrize("rate", ["dropout_p", "dropout_rate"])
def test_what_is_wrong_is_refused(mistake, rate):
    if "abacus" in str(mistake):  # a backend's name, which the library knows
        return
    names = {"dropout": rate}
    with pytest.raises(scoremod.InvalidArgumentError) as caught:
        checked(CallSpec(**mistake.arguments({})), dropout=rate)
    mistake.check(caught.value, names)


def test_one_number_or_a_pair_says_how_long_sequences_are():
    assert [checked_longest(each) for each in (None, 3, np.int32(3), (3, None), [4, 5])] == [(None, None), (3, 3), (3, 3), (3, None), (4, 5)]
    for mistake in MISTAKES_OF_SEQUENCES:
        with pytest.raises(scoremod.InvalidArgumentError) as caught:
            checked_longest(mistake.value)
        mistake.check(caught.value, {})


def test_a_start_is_an_index():
    assert checked_start(np.int64(3), 2) == 3 and type(checked_start(np.int64(3), 2)) is int
    for mistake in mistakes("q_start"):
        if not isinstance(mistake.value, str):
            with pytest.raises(scoremod.InvalidArgumentError) as caught:
                checked_start(mistake.value, 2)
            mistake.check(caught.value, {})


def test_what_stands_for_true_or_false_is_taken():
    check_flags(a=True, b=None, c=np.False_, d=1, e=np.ones(1), f=[])
    for value in ("", "no", np.ones(2), np.ones(0)):
        with pytest.raises(TypeError, match="a: expected True or False"):
            check_flags(a=value)


def test_a_graph_hands_back_what_was_given():
    assert all(given != default for given, default in zip(EACH_FIELD._replace(q_start=True), CallSpec()))
    for spec in (EACH_FIELD, EACH_FIELD._replace(q_start=True, offsets=Offsets()), CallSpec()):
        values = spec.in_graph()
        assert CallSpec.of_graph(**values) == spec
        assert not any(isinstance(value, tuple) for name, value in values.items() if name != "backends")
    assert CallSpec.of_graph(**CallSpec().in_graph()).offsets is NO_OFFSETS
