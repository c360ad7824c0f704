"""What a function reads of an object, such as a module's `self.slopes`: found in its text, and looked up without running anybody's code."""

import dis
import functools
import types
from typing import NamedTuple

import torch

_LOADS = {"LOAD_DEREF", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW"}
_OF_CELLS = {"LOAD_CLOSURE", "MAKE_CELL", "COPY_FREE_VARS"}  # which hand a variable to a function within
_ATTRIBUTES = {"LOAD_ATTR", "LOAD_METHOD"}
_WRITES = {"STORE_ATTR", "DELETE_ATTR"}
# Attributes that C code answers for, from the object's own memory: __slots__, and the fields of a named tuple.
_FIELDS = (types.MemberDescriptorType, type(NamedTuple("_Pair", [("first", int)]).first))

# Kinds that answer for their attributes in no way of their own.
_PLAIN_ANSWERS = {kind.__getattribute__ for kind in (object, tuple, types.SimpleNamespace)}

ABSENT = object()


class NotKnown(Exception):
    """What an object would answer isn't known without asking it."""


@functools.lru_cache(maxsize=4096)
def chains(code, variable):
    """The attributes that a function's text, and those of the functions within, read of a variable: a tuple of chains of names, ("layer", "slopes") for
    variable.layer.slopes. Raises NotKnown where it does anything else with it."""
    found, steps = [], [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "EXTENDED_ARG")]
    for at, step in enumerate(steps):
        if step.opname in _WRITES:
            raise NotKnown
        named = step.argval if isinstance(step.argval, tuple) else (step.argval,)
        if variable not in named or step.opname in _OF_CELLS or step.opname in _ATTRIBUTES or step.opname == "LOAD_CONST":
            continue
        chain = []
        for following in steps[at + 1 :]:
            if following.opname not in _ATTRIBUTES:
                break
            chain.append(following.argval)
        if step.opname not in _LOADS or not chain:
            raise NotKnown
        found.append(tuple(chain))
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            found += chains(each, variable)
    return tuple(dict.fromkeys(found))


def look_up(value, name):
    """value.name, or ABSENT; a method as types.MethodType. Raises NotKnown where a property or __getattr__ would decide."""
    if isinstance(value, types.ModuleType):
        return value.__dict__.get(name, ABSENT)
    kind = type(value)
    asked = kind.__getattribute__ not in _PLAIN_ANSWERS or getattr(kind, "__getattr__", None) not in (None, torch.nn.Module.__getattr__)
    if asked:
        raise NotKnown
    of_kind = next((vars(each)[name] for each in kind.__mro__ if name in vars(each)), ABSENT)
    if isinstance(of_kind, _FIELDS):
        return getattr(value, name, ABSENT)
    if hasattr(type(of_kind), "__set__"):  # a property comes before the object's own
        raise NotKnown
    own = getattr(value, "__dict__", {})
    if name in own:
        return own[name]
    if isinstance(of_kind, types.FunctionType):
        return types.MethodType(of_kind, value)
    if isinstance(of_kind, staticmethod):
        return of_kind.__func__
    if hasattr(type(of_kind), "__get__"):
        raise NotKnown
    if of_kind is ABSENT and isinstance(value, torch.nn.Module):
        return next((own[of][name] for of in ("_parameters", "_buffers", "_modules") if name in own.get(of, ())), ABSENT)
    return of_kind
