"""The attributes of objects, such as a module's `self.slopes`, and items of containers, looked up without running anybody's code."""

import types
from collections import OrderedDict
from typing import NamedTuple

import torch


class _Pair(NamedTuple):
    first: int


# Attributes that C code answers for, from the object's own memory: __slots__, and the fields of a named tuple.
_FIELDS = (types.MemberDescriptorType, type(vars(_Pair)["first"]))

# Kinds that answer for their attributes in no way of their own.
_PLAIN_ANSWERS = {kind.__getattribute__ for kind in (object, tuple, types.SimpleNamespace)}
_OF_MODULES = ("_parameters", "_buffers", "_modules")
_DICTS = (dict, OrderedDict)
_LISTS = (list, tuple, torch.Size)
_OF_NAMES, _OF_NUMBERS = (torch.nn.ParameterDict, torch.nn.ModuleDict), (torch.nn.ParameterList, torch.nn.ModuleList)
_CONTAINERS = {*_DICTS, *_LISTS, *_OF_NAMES, *_OF_NUMBERS}

ABSENT = object()


class NotKnown(Exception):
    """A function's reads may differ at its next call. what: a text such as "reads ..."; line: the line in the user's code, if it is known."""

    def __init__(self, what, line=None):
        super().__init__(what, line)
        self.what, self.line = what, line

    def __str__(self):
        return self.what if self.line is None else f"{self.what} at {self.line}"


def look_up(value, name):
    """value.name, or ABSENT; a method as types.MethodType. Raises NotKnown where a property or __getattr__ would decide."""
    if isinstance(value, types.ModuleType):
        if type(value) is not types.ModuleType or (name not in value.__dict__ and "__getattr__" in value.__dict__):
            raise NotKnown(f"asks the module {value.__name__!r} for {name!r}, which code of its own answers")
        return value.__dict__.get(name, ABSENT)
    kind = type(value)
    asked = kind.__getattribute__ not in _PLAIN_ANSWERS or getattr(kind, "__getattr__", None) not in (None, torch.nn.Module.__getattr__)
    if asked:
        raise NotKnown(f"asks a {kind.__name__} for {name!r}, which code of its own answers")
    of_kind = next((vars(each)[name] for each in kind.__mro__ if name in vars(each)), ABSENT)
    if isinstance(of_kind, _FIELDS):
        return getattr(value, name, ABSENT)
    if hasattr(type(of_kind), "__set__"):  # a property comes before the object's own
        raise NotKnown(f"asks a {kind.__name__} for the property {name!r}")
    own = getattr(value, "__dict__", {})
    if name in own:
        return own[name]
    if isinstance(of_kind, types.FunctionType):
        return types.MethodType(of_kind, value)
    if isinstance(of_kind, staticmethod):
        return of_kind.__func__
    if hasattr(type(of_kind), "__get__"):
        raise NotKnown(f"asks a {kind.__name__} for {name!r}, which code of its own answers")
    return _of_module(value, name) if of_kind is ABSENT and isinstance(value, torch.nn.Module) else of_kind


def _of_module(module, name):
    own = module.__dict__
    for of in _OF_MODULES:
        if name in own.get(of, ()):
            return own[of][name]
    return ABSENT


def contents(value):
    """The dict or the list of what a container holds; None for what is none, or decides itself what it answers."""
    kind = type(value)
    if kind not in _CONTAINERS:
        return None
    if kind in _DICTS or kind in _LISTS:
        return value
    own = value.__dict__
    if kind in _OF_NAMES:
        return {key: _held(value, str(key)) for key in own["_keys" if kind is torch.nn.ParameterDict else "_modules"]}
    return [_held(value, str(i)) for i in range(own["_size"] if kind is torch.nn.ParameterList else len(own["_modules"]))]


def _held(module, name):
    return module.__dict__[name] if name in module.__dict__ else _of_module(module, name)


def item_of(held, key):
    """The item of contents() at a constant; ABSENT where it has none."""
    try:
        return held[key]
    except (LookupError, TypeError):
        return ABSENT


def attribute_of(value, name):
    """look_up(..., name) of objects of this value's type, in less time where it is their own or a module's."""
    kind = type(value)
    asks, own_answer, order = kind.__getattribute__, getattr(kind, "__getattr__", None), kind.__mro__
    classes = [vars(each) for each in order]
    is_plain = asks in _PLAIN_ANSWERS and own_answer in (None, torch.nn.Module.__getattr__) and hasattr(value, "__dict__")
    if isinstance(value, types.ModuleType) or not is_plain or any(name in each for each in classes):
        return lambda each: look_up(each, name)
    is_module = issubclass(kind, torch.nn.Module)

    def find(each):
        if kind.__getattribute__ is asks and getattr(kind, "__getattr__", None) is own_answer and kind.__mro__ is order:
            for names in classes:
                if name in names:
                    return look_up(each, name)
            own = each.__dict__
            if name in own:
                return own[name]
            if is_module:
                for of in _OF_MODULES:
                    if name in own.get(of, ()):
                        return own[of][name]
        return look_up(each, name)

    return find


def item_at(kind, key):
    """item_of(contents(...), key) of containers of a type, in less time where there are few items to ask."""
    if kind in _DICTS or kind in _LISTS:
        return lambda each: item_of(each, key)
    if kind is torch.nn.ParameterDict:
        return _held_as(str(key), lambda own: key in own["_keys"])
    if kind is torch.nn.ParameterList and type(key) is int and key >= 0:
        return _held_as(str(key), lambda own: key < own["_size"])
    return lambda each: item_of(contents(each), key)


def _held_as(name, has):
    """A function that gives what a module holds by a name, where its __dict__ has the item; else ABSENT."""

    def find(each):
        own = each.__dict__
        if not has(own):
            return ABSENT
        if name not in own and name in own["_parameters"]:
            return own["_parameters"][name]
        return _held(each, name)

    return find
