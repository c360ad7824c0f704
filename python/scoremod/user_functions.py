"""A user's score_mod and mask_mod as Python functions: what they take, and what they read besides their arguments."""

import functools
import inspect
import types

from scoremod.errors import WrongTypeError
from scoremod.program import AXES

ARGUMENTS = {"score_mod": ("score", *AXES), "mask_mod": AXES}

# A function is looked into so far. What lies deeper is not found, which costs a name or a check.
_MAX_VALUES = 1000
_MAX_ITEMS = 64
_LIBRARIES = ("jax", "numpy", "torch")


def check_callable(name, function):
    """Raises WrongTypeError unless a "score_mod" or "mask_mod" is a function of the arguments that it is called with."""
    arguments = len(ARGUMENTS[name])
    if _is_usual(function, arguments):
        return
    if not callable(function):
        found = f"an array of shape {tuple(function.shape)}" if hasattr(function, "shape") else f"{function!r:.100}"
        raise WrongTypeError(f"{name}: expected a function, found {found}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a function that is not Python's
        return
    if not _binds(signature, arguments) and not _takes_itself(function, arguments):
        raise WrongTypeError(
            f"{name}: expected a function of ({', '.join(ARGUMENTS[name])}), found one of {signature}; a mask is passed as mask_mod, a modified score as score_mod"
        )


def _is_usual(function, arguments):
    """Whether it is a plain function of exactly so many arguments, as most are: some calls pay for looking each time."""
    if type(function) is not types.FunctionType or function.__dict__:
        return False
    code = function.__code__
    return code.co_argcount == arguments and not code.co_kwonlyargcount


def _takes_itself(function, arguments):
    """Whether a function that wraps another (functools.wraps), whose signature is taken for its own, takes so many arguments itself, and doesn't just
    hand all on."""
    if not hasattr(function, "__wrapped__") or not isinstance(function, types.FunctionType):
        return False
    own = inspect.signature(function, follow_wrapped=False)
    return _binds(own, arguments) and next(iter(own.parameters.values())).kind != inspect.Parameter.VAR_POSITIONAL


def _binds(signature, arguments):
    try:
        signature.bind(*range(arguments))
    except TypeError:
        return False
    return True


def captured(function):
    """(name, value) of each value that a function reads: from its closure, its defaults, its constants and its module. Functions, lists and
    dicts among the values are searched, too."""
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


def names_of(arrays, functions):
    """key -> name_of() each of the arrays, for those that have one. arrays: key -> array. functions: functions, None and texts, which read none."""
    called = [function for function in functions if callable(function)]
    found = {key: name_of(array, called) for key, array in arrays.items() if array is not None}
    return {key: name for key, name in found.items() if name is not None}


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
    call = getattr(type(value), "__call__", None)  # noqa: B004 (the method itself is needed)
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
