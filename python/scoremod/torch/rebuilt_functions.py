"""Functions with OpenNumbers in place of floats that they read: copies of the functions and of all that leads to the floats; the caller's stay as they are.

Floats are found as function_keys finds them: in variables around a function, defaults, globals, partials, containers, and attributes that its text asks
for. Where one isn't found the copy has the number itself, which then stays in the key of its trace.
"""

import functools
import types
from collections import OrderedDict

from scoremod.torch.attributes import ABSENT, contents, item_of, look_up
from scoremod.torch.function_keys import is_of_library, is_whole
from scoremod.torch.function_texts import Item, reading_of
from scoremod.torch.open_numbers import OpenNumber
from scoremod.torch.pure_functions import is_seen

# A text that names one of these may tell an OpenNumber from a float.
_TELL_KINDS = frozenset(["type", "isinstance", "issubclass", "__class__"])


def tells_kinds(key):
    """Whether a function of a key (function_keys.key_of) asks what kind of object something is."""
    return any(each is type or each is isinstance or each is issubclass or (type(each) is types.CodeType and _names_kinds(each)) for each in key)


def _names_kinds(code):
    return not _TELL_KINDS.isdisjoint(code.co_names) or any(type(each) is types.CodeType and _names_kinds(each) for each in code.co_consts)


class Rebuilding:
    """numbers: the OpenNumbers that were put in, each with its own number in `reads`, in the order in which floats were found.

    chosen: which floats become OpenNumbers, by that order; None for all.
    """

    def __init__(self, chosen=None):
        self._chosen, self._count = chosen, 0
        self.numbers, self.is_read = [], set()

    def function(self, function, arguments={}):  # noqa: B006 (read only)
        """A copy of a function. arguments: name -> object, of those that it is called with each time."""
        if function.__closure__ is None and not arguments and is_of_library(function.__globals__.get("__name__") or ""):
            return function
        _, cells, variables, _, text = reading_of(function.__code__, tuple(arguments))
        values = [self.variable(variable, cell.cell_contents, text) for variable, cell in zip(cells, function.__closure__ or ())]
        namespace = function.__globals__
        found = {name: self.variable((is_global, name), namespace[name], text) for is_global, name in variables if name in namespace}
        changed = {name: value for name, value in found.items() if value is not namespace[name]}
        closure = None if function.__closure__ is None else tuple(map(types.CellType, values))
        copy = types.FunctionType(function.__code__, {**namespace, **changed} if changed else namespace, function.__name__, None, closure)
        copy.__defaults__ = None if function.__defaults__ is None else tuple(map(self.whole, function.__defaults__))
        copy.__kwdefaults__ = None if function.__kwdefaults__ is None else {name: self.whole(each) for name, each in function.__kwdefaults__.items()}
        copy.__dict__.update(function.__dict__)
        return copy

    def whole(self, value):
        """The copy of a value that is read as a whole."""
        kind = type(value)
        if kind is float:
            return self._number(value)
        if kind is types.FunctionType:
            return self.function(value)
        if kind is types.MethodType and type(value.__func__) is types.FunctionType:
            return self._method(value)
        if kind is functools.partial:
            return functools.partial(self.whole(value.func), *map(self.whole, value.args), **{name: self.whole(each) for name, each in value.keywords.items()})
        if kind in (dict, OrderedDict):
            return kind((name, self.whole(each)) for name, each in value.items())
        return kind(map(self.whole, value)) if kind in (list, tuple) else value

    def variable(self, variable, value, text):
        """The copy of a function's variable."""
        if is_whole(value) or type(value) is OpenNumber:
            return self.whole(value)
        for chain, _ in text.uses.get(variable, ()):
            value = self._along(value, chain)
        return value

    def _number(self, value):
        number, self._count = self._count, self._count + 1
        if self._chosen is not None and number not in self._chosen:
            return value
        self.numbers.append(OpenNumber(value, lambda values: values[number], frozenset([number]), self.is_read))
        return self.numbers[-1]

    def _method(self, method):
        name = method.__func__.__code__.co_varnames[0]
        owner = self.variable((False, name), method.__self__, reading_of(method.__func__.__code__, (name,)).text)
        return types.MethodType(self.function(method.__func__, {name: owner}), owner)

    def _along(self, value, chain):
        """The copy of a value of which a chain of attributes and items is asked."""
        if not chain or is_whole(value) or type(value) in (OpenNumber, types.ModuleType):
            return value if type(value) is types.ModuleType else self.whole(value)
        step, held = chain[0], contents(value)
        if type(step) is Item:
            return value if held is not value else self._with_item(value, step.key, chain)
        if held is not None and is_seen(step):
            return self.whole(value)
        found = look_up(value, step)
        if type(found) is types.MethodType:
            name = found.__func__.__code__.co_varnames[0]
            return self.variable((False, name), value, reading_of(found.__func__.__code__, (name,)).text)
        return self._with_attribute(value, step, found, chain)

    def _with_item(self, value, key, chain):
        found = item_of(value, key)
        changed = found if found is ABSENT else self._along(found, chain[1:])
        if changed is found:
            return value
        kind, copy = type(value), value.copy() if isinstance(value, dict) else list(value)
        copy[key] = changed
        return tuple(copy) if kind is tuple else copy

    def _with_attribute(self, value, name, found, chain):
        own = getattr(value, "__dict__", {})
        if name not in own or own[name] is not found:
            return value
        changed = self._along(found, chain[1:])
        if changed is found:
            return value
        copy = types.SimpleNamespace() if type(value) is types.SimpleNamespace else object.__new__(type(value))
        copy.__dict__.update(own)
        copy.__dict__[name] = changed
        return copy
