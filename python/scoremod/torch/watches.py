"""Functions that read what they read before: a Watch sees that without making their key (function_keys), in a fifth of the time.

It knows a few kinds of what functions read: numbers, texts, tensors, functions, and attributes and items that lead to these. Functions that read anything
else have none, and neither have those without a key.
"""

import types

import torch

from scoremod.torch.attributes import ABSENT, NotKnown, attribute_of, contents, item_at
from scoremod.torch.function_keys import is_of_library, is_whole
from scoremod.torch.function_texts import Item, reading_of
from scoremod.torch.pure_functions import is_seen

_TENSORS = (torch.Tensor, torch.nn.Parameter)
_NUMBERS = (int, bool, str, bytes, type(None), torch.dtype, torch.device)
_MAX_DEPTH = 4


class _NotWatched(Exception):
    """A function reads what no Watch knows."""


def watch_of(function):
    """A Watch of a function that has a key: (function, list) -> whether it reads what this one reads now. It appends the tensors that are read to the list, in
    the order of their numbers in the key. None for a function that reads what no Watch knows."""
    try:
        return IS_NONE if function is None else _watch(function, 0)
    except (_NotWatched, NotKnown):
        return None


def _same_object(kept):
    return lambda value, tensors: value is kept


# The Watch of no function.
IS_NONE = _same_object(None)


def _watch(value, depth):
    kind = type(value)
    if kind is types.FunctionType:
        if value.__closure__ is None and is_of_library(value.__globals__.get("__name__") or ""):
            return _same_object(value)
        return _of_function(value, depth)
    if kind in _TENSORS and not value.__dict__:
        return _tensor(kind)
    if kind is float:
        return _float(value)
    if kind in _NUMBERS:
        return lambda other, tensors: other is value or (type(other) is kind and other == value)
    if isinstance(value, (types.BuiltinFunctionType, type)):
        return _same_object(value)
    raise _NotWatched


def _tensor(kind):
    def is_one(value, tensors):
        if type(value) is not kind or value.__dict__:
            return False
        tensors.append(value)
        return True

    return is_one


def _float(kept):
    digits = kept.hex()  # which tells 0.0 from -0.0
    return lambda value, tensors: value is kept or (type(value) is float and value.hex() == digits)


def _of_function(function, depth):
    if depth > _MAX_DEPTH or function.__defaults__ or function.__kwdefaults__ or function.__dict__:
        raise _NotWatched
    code = function.__code__
    _, cells, variables, _, text = reading_of(code)
    of_cells = [_variable(variable, cell.cell_contents, text, depth) for variable, cell in zip(cells, function.__closure__ or ())]
    namespace, of_globals, builtins = function.__globals__, [], []
    for variable in variables:
        name = variable[1]
        if name in namespace:
            of_globals.append((name, _variable(variable, namespace[name], text, depth)))
        else:
            builtins.append(name)

    def reads_the_same(value, tensors):
        if type(value) is not types.FunctionType or value.__code__ is not code or value.__defaults__ or value.__kwdefaults__ or value.__dict__:
            return False
        if of_cells:
            for cell, watch in zip(value.__closure__ or (), of_cells):
                try:
                    if not watch(cell.cell_contents, tensors):
                        return False
                except ValueError:  # an empty cell
                    return False
        return not variables or reads_the_same_globals(value.__globals__, tensors)

    def reads_the_same_globals(names, tensors):
        for name, watch in of_globals:
            if not watch(names.get(name, ABSENT), tensors):
                return False
        for name in builtins:
            if name in names:
                return False
        return True

    return reads_the_same


def _variable(variable, value, text, depth):
    if is_whole(value) or isinstance(value, (types.BuiltinFunctionType, type)):
        return _watch(value, depth + 1)
    if type(value) is types.ModuleType and is_of_library(value.__name__):
        return _same_object(value)  # whose attributes a key takes for constants
    ways = [_way(value, chain, depth) for chain, _ in text.uses.get(variable, ())]
    if len(ways) == 1:
        return ways[0]
    # A list takes a third less than a generator, which each call would pay for.
    return lambda other, tensors: all([way(other, tensors) for way in ways])  # noqa: C419


def _way(value, chain, depth):
    """A watch of what a chain of attributes and items finds in a value, as function_keys reads it."""
    steps = []
    for step in chain:
        if is_whole(value):
            break
        held = contents(value)
        if type(step) is Item:
            if held is None:
                break
            find = item_at(type(value), step.key)
        elif held is not None and is_seen(step):
            break
        else:
            find = attribute_of(value, step)
        steps.append((type(value), find))
        value = find(value)
    leaf = _watch(value, depth + 1)

    def finds_the_same(other, tensors):
        try:
            for kind, find in steps:
                if type(other) is not kind:
                    return False
                other = find(other)
        except NotKnown:
            return False
        return leaf(other, tensors)

    return finds_the_same
