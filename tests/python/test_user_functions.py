"""Which functions are taken for a score_mod or a mask_mod."""

import functools

import pytest

from scoremod.errors import WrongTypeError
from scoremod.user_functions import check_callable


def half(score):
    return score / 2


@functools.wraps(half)
def wraps_with_its_own_arguments(score, b, h, q_idx, kv_idx):
    return half(score)


@functools.wraps(half)
def wraps_with_a_score(score, *indices):
    return half(score)


@functools.wraps(half)
def wraps_with_any_arguments(*arguments):
    return half(*arguments)


def test_a_function_that_wraps_another_is_taken_by_its_own_arguments():
    check_callable("score_mod", wraps_with_its_own_arguments)
    check_callable("score_mod", wraps_with_a_score)
    with pytest.raises(WrongTypeError, match="mask_mod: expected a function of"):
        check_callable("mask_mod", wraps_with_its_own_arguments)


def test_a_wrapper_of_any_arguments_takes_those_of_what_it_wraps():
    with pytest.raises(WrongTypeError, match=r"score_mod: expected a function of .*, found one of \(score\)"):
        check_callable("score_mod", wraps_with_any_arguments)
