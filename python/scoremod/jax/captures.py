"""Integers that a user's function reads and JAX would cut to 32 bits."""

import jax
import jax.core
import numpy as np
from jax.extend import core

from scoremod.errors import InvalidArgumentError
from scoremod.jax.arrays import beyond_int32, too_wide
from scoremod.jax.jaxprs import closed, inner_jaxprs
from scoremod.user_functions import captured


def check_integers(name, function, avals, jaxpr):
    """Raises InvalidArgumentError where a number beyond int32 gets into what a function computes. JAX without 64-bit types keeps the low 32
    bits of NumPy's integers and says nothing.

    jaxpr: what the function was traced to without 64-bit types.
    """
    wide = [(each, value, too_wide(value)) for each, value in captured(function)]
    wide = [each for each in wide if each[2] is not None]
    if not wide:
        return
    arrays = [each for each in wide if isinstance(each[1], (np.ndarray, jax.Array))]
    found = _cut_array(arrays, jaxpr) if arrays else None
    if found is None and any(not isinstance(value, jax.Array) for _, value, _ in wide):
        # A NumPy array's elements, too, may have become numbers.
        numbers = {number: each for each, value, number in wide if not isinstance(value, (np.ndarray, jax.Array))}
        found = _cut_number(numbers, function, avals, jaxpr)
    if found is not None:
        each, number = found
        raise InvalidArgumentError(beyond_int32(f"{name}: {each}" if each else name, number))


def _cut_array(arrays, jaxpr):
    """(name, number) of the first array whose low 32 bits a jaxpr has."""
    numbers = [np.asarray(each) for each in _numbers(jaxpr) if getattr(each, "dtype", None) in (np.int32, np.uint32)]
    for name, array, number in arrays:
        cut = np.asarray(array).astype(np.uint32)
        if any(each.shape == cut.shape and (each.astype(np.uint32) == cut).all() for each in numbers):
            return name, number
    return None


def _cut_number(wide, function, avals, jaxpr):
    """(name, number) of a number, one of `wide` or made of them, that tracing with 64-bit types leaves in a function's jaxpr, and tracing
    without them, which gave `jaxpr`, doesn't. The name is None if it isn't one of `wide`. An integer that becomes a float is known by its value."""
    kept = {np.float32(each) for each in _numbers(jaxpr) if np.ndim(each) == 0}
    with jax.enable_x64(True):
        try:
            numbers = list(_numbers(jax.make_jaxpr(lambda *arguments: function(*arguments))(*avals)))
        except (TypeError, ValueError, OverflowError):  # wrong with 64-bit types alone: it can't be told whether a number gets in
            return next(((name, number) for number, name in wide.items()), None)
    for each in numbers:
        dtype = getattr(each, "dtype", None)
        number = None
        if dtype in (np.int64, np.uint64):
            number = too_wide(each if isinstance(each, jax.core.Tracer) else np.asarray(each))
        elif dtype in (np.float32, np.float64) and np.ndim(each) == 0 and np.float32(each) not in kept:
            number = next((number for number in wide if np.float32(number) == np.float32(each)), None)
        if number is not None:
            return wide.get(number), number
    return None


def _numbers(jaxpr):
    """The arrays that a jaxpr captures, and the numbers in its text."""
    jaxpr = closed(jaxpr)
    yield from jaxpr.consts
    for equation in jaxpr.jaxpr.eqns:
        yield from (variable.val for variable in equation.invars if isinstance(variable, core.Literal))
        for inner in inner_jaxprs(equation):
            yield from _numbers(inner)
