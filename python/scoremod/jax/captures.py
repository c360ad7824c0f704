"""What a user's function reads besides its arguments: the names of captured arrays, and integers that JAX would cut to 32 bits."""

import functools
import types

import jax
import numpy as np
from jax.extend import core

from scoremod.errors import InvalidArgumentError
from scoremod.jax.arrays import beyond_int32, too_wide
from scoremod.jax.jaxprs import closed, inner_jaxprs

# A function is looked into so far. What lies deeper is not found, which costs a name or a check.
_MAX_VALUES = 1000
_MAX_ITEMS = 64
_LIBRARIES = ("jax", "numpy")


def captured(function):
    """(name, value) of what a function closes over, has as defaults and numbers in its text, or reads of its module; likewise of the
    functions, and of the items of lists and dicts, among those."""
    pending, seen = [("", function)], {}
    while pending and len(seen) < _MAX_VALUES:
        name, value = pending.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value  # kept, so that no other gets its id meanwhile
        if name:
            yield name, value
        try:
            pending.extend(_inside(name, value))
        except Exception:  # an object may answer for its attributes as it likes; what it holds is not found then
            continue


def name_of(array, functions):
    """The name by which any of the functions reads an array; None if none does."""
    return next((name for function in functions for name, value in captured(function) if value is array), None)


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
    if found is None and len(arrays) < len(wide):
        found = _cut_number({number: each for each, _, number in wide}, function, avals, jaxpr)
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
        except (TypeError, ValueError, OverflowError):  # wrong with 64-bit types alone: it can't be told whether the number gets in
            number, name = next(iter(wide.items()))
            return name, number
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


def _inside(name, value):
    """(name, value) of what a value is made of or reads; a name may be "" for what has none."""
    if isinstance(value, functools.partial):
        return [(name, value.func), *_items(name, enumerate(value.args)), *value.keywords.items()]
    if isinstance(value, types.MethodType):
        return [(name, value.__func__), *getattr(value.__self__, "__dict__", {}).items()]
    if isinstance(value, types.FunctionType):
        return [] if (value.__module__ or "").split(".")[0] in _LIBRARIES else _read_by(value)
    if isinstance(value, dict):
        return _items(name, value.items())
    if isinstance(value, (list, tuple)):
        return _items(name, enumerate(value))
    if callable(getattr(value, "__wrapped__", None)):  # a jitted function
        return [(name, value.__wrapped__)]
    call = getattr(type(value), "__call__", None)
    if not name and isinstance(call, types.FunctionType):  # an object that is called as the function is
        return [(name, types.MethodType(call, value))]
    return []


def _items(name, items):
    return [(f"{name}[{key!r}]", item) for key, item in list(items)[:_MAX_ITEMS]]


def _read_by(function):
    code = function.__code__
    found = [(variable, cell.cell_contents) for variable, cell in zip(code.co_freevars, function.__closure__ or ()) if _is_set(cell)]
    defaults = function.__defaults__ or ()
    found += zip(code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount], defaults)
    found += (function.__kwdefaults__ or {}).items()
    codes = [code]
    for each in codes:  # grows: a function's text has those of the functions within
        found += [(variable, function.__globals__[variable]) for variable in each.co_names if variable in function.__globals__]
        found += [(str(number), number) for number in each.co_consts if isinstance(number, int)]
        codes += [inner for inner in each.co_consts if isinstance(inner, types.CodeType)]
    return found


def _is_set(cell):
    try:
        cell.cell_contents
    except ValueError:
        return False
    return True
