"""A key of a function: of its code and of all that it reads, besides its arguments. Functions with equal keys compute the same.

Numbers count by value, tensors by their looks, functions by their keys, and containers by their items. Objects such as modules count by what the
text asks of them (function_texts, attributes). PyTorch's own settings count where they decide what its functions give. Anything else gives no
key: a trace is kept only where nothing that the function reads can change unseen.
"""

import enum
import functools
import types

import numpy as np
import torch
from torch._C._functorch import peek_interpreter_stack
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from scoremod.torch.attributes import ABSENT, NotKnown, contents, item_of, look_up
from scoremod.torch.dtensors import is_sharded
from scoremod.torch.function_texts import Item, reading_of
from scoremod.torch.open_numbers import OpenNumber
from scoremod.torch.pure_functions import is_pure, is_seen
from scoremod.torch.recorded_graph import RecordedFunction

_PLAIN = {int, bool, str, bytes, complex, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format, type(Ellipsis)}
# Stands before a float's text in a key, and nowhere else.
FLOAT = object()
_TENSORS = (torch.Tensor, torch.nn.Parameter)
# Modules whose attributes are taken for constants.
_LIBRARIES = ("torch", "math", "operator", "builtins")
_MAX_DEPTH = 8
# A container of more is not looked through at each call.
_MAX_ITEMS = 1024

_default_dtype, _is_grad_enabled = torch.get_default_dtype, torch.is_grad_enabled
_any_autocast = torch._C._is_any_autocast_enabled
_is_deterministic = torch._C._get_deterministic_algorithms
_count_function_modes = torch._C._len_torch_function_stack
_peek = peek_interpreter_stack


def ambient_state():
    """PyTorch's settings that decide what functions of tensors give. Raises NotKnown where others decide, too."""
    autocast = _autocasts() if _any_autocast() else None
    devices = tuple(map(_device_of, _get_current_function_mode_stack())) if _count_function_modes() else None
    return _default_dtype(), _is_grad_enabled(), _is_deterministic(), autocast, devices


def _autocasts():
    return tuple((torch.is_autocast_enabled(each), torch.get_autocast_dtype(each)) for each in ("cpu", "cuda"))


def _device_of(mode):
    if type(mode) is not DeviceContext:  # that of torch.set_default_device
        raise NotKnown(f"runs within a {type(mode).__name__}, which decides what PyTorch's functions give")
    return mode.device


def key_of(score_mod, mask_mod):
    """(key, tensors): what the functions are, with the numbers of the tensors that they read; (None, []) where that isn't known."""
    if _peek() is not None:
        return None, []
    key, tensors = [], []
    try:
        key.append(ambient_state())
        _read(score_mod, key, tensors, 0)
        _read(mask_mod, key, tensors, 0)
    except NotKnown:
        return None, []
    return tuple(key), tensors


def why_not_known(score_mod, mask_mod):
    """Why key_of() knows no key of the functions; None where it does, or where the reason isn't theirs."""
    for function in (score_mod, mask_mod):
        try:
            _read(function, [], [], 0)
        except NotKnown as reason:
            return str(reason)
    return None


def _read(value, key, tensors, depth):
    """Appends to the key what a value is: its kind first, which says how much follows."""
    kind = type(value)
    if kind is types.FunctionType:
        _read_function(value, key, tensors, depth)
    elif kind in _TENSORS:
        key += (kind, _number_in(tensors, value))
        if value.__dict__:
            key.append(_own_numbers(value))
    elif kind is float:
        key += (FLOAT, value.hex())  # which tells 0.0 from -0.0
    elif kind in _PLAIN:
        key += (kind, value)
    elif kind is OpenNumber:
        key += (FLOAT, value)
    else:
        _read_other(value, kind, key, tensors, depth)


def _read_other(value, kind, key, tensors, depth):
    if depth > _MAX_DEPTH:
        raise NotKnown(f"reads what lies deeper than {_MAX_DEPTH} objects or functions")
    held = contents(value)
    if held is not None:
        _read_items(held, kind, key, tensors, depth)
    elif kind is slice:
        key += (kind, value.start, value.stop, value.step)
    elif kind is functools.partial:
        key += (kind, len(value.args), tuple(value.keywords))
        for each in (value.func, *value.args, *value.keywords.values()):
            _read(each, key, tensors, depth + 1)
    elif kind is types.MethodType and isinstance(value.__func__, types.FunctionType) and value.__func__.__code__.co_argcount:
        key.append(kind)
        _read_function(value.__func__, key, tensors, depth + 1, {value.__func__.__code__.co_varnames[0]: value.__self__})
    elif isinstance(value, np.generic):
        key += (kind, value.tobytes())
    elif kind is RecordedFunction:
        key += (kind, value.recording, value.backward)
        _read_items(value.tensors, dict, key, tensors, depth)
    elif is_sharded(value):
        key += (kind, value.placements, _number_in(tensors, value))
    elif isinstance(value, (types.BuiltinFunctionType, type, enum.Enum)):
        if not isinstance(value, enum.Enum) and not is_pure(value):
            raise NotKnown(f"reads {getattr(value, '__qualname__', value)!r}, which may answer otherwise at the next call")
        key += (kind, value)
    else:
        raise NotKnown(f"reads a {kind.__name__} as a whole")


def _read_items(held, kind, key, tensors, depth):
    if len(held) > _MAX_ITEMS:
        raise NotKnown(f"reads a {kind.__name__} of more than {_MAX_ITEMS} items as a whole")
    key += (kind, len(held))
    if isinstance(held, dict):
        for name, each in held.items():
            if type(name) not in _PLAIN:
                raise NotKnown(f"reads a {kind.__name__} whose keys are of {type(name).__name__}")
            key += (type(name), name)
            _read(each, key, tensors, depth + 1)
        return
    for each in held:
        _read(each, key, tensors, depth + 1)


def _number_in(tensors, value):
    for number, tensor in enumerate(tensors):
        if tensor is value:
            return number
    tensors.append(value)
    return len(tensors) - 1


def _own_numbers(tensor):
    """The numbers that somebody gave a tensor as attributes. Raises NotKnown for what comes before an attribute that all tensors have."""
    own = tensor.__dict__.items()
    if any(is_seen(name) for name, each in own if not _is_number(each)):
        raise NotKnown("reads a tensor with attributes of its own")
    return tuple((name, each) for name, each in own if _is_number(each))


def _read_function(function, key, tensors, depth, arguments={}):  # noqa: B006 (read only)
    """arguments: name -> object, of those that the function is called with each time."""
    # By where its text is: functools.wraps gives a function of the user's the module of a library's.
    if function.__closure__ is None and not arguments and is_of_library(function.__globals__.get("__name__") or ""):
        reason = _objection_to(function)
        if reason is not None:
            raise NotKnown(reason)
        key += (types.FunctionType, function)
        return
    defaults, keywords = function.__defaults__ or (), function.__kwdefaults__ or {}
    if any(map(is_seen, function.__dict__)):  # others are found in the text that asks for them
        raise NotKnown(f"reads the function {function.__qualname__}, which has attributes of its own")
    key += (types.FunctionType, function.__code__, len(defaults), tuple(keywords))
    for each in (*defaults, *keywords.values()):
        _read(each, key, tensors, depth + 1)
    _read_text(function, arguments, key, tensors, depth)


def _read_text(function, arguments, key, tensors, depth):
    """Adds to the key what a function's text reads."""
    objection, cells, variables, impure_builtins, text = reading_of(function.__code__, tuple(arguments))
    if objection is not None:
        raise NotKnown(*objection)
    if depth > _MAX_DEPTH:
        raise NotKnown(f"calls more than {_MAX_DEPTH} functions in one another")
    if cells:
        for variable, cell in zip(cells, function.__closure__):
            try:
                value = cell.cell_contents
            except ValueError:
                raise NotKnown(f"reads the variable {variable[1]!r}, which isn't set yet") from None
            _read_variable(variable, value, text, key, tensors, depth + 1)
    namespace = function.__globals__
    for variable in variables:
        name = variable[1]
        if name in namespace:
            _read_variable(variable, namespace[name], text, key, tensors, depth + 1)
        elif name in impure_builtins:
            raise NotKnown(f"calls {name}(), whose answer may change", text.uses[variable][0][1])
        else:
            key.append(ABSENT)
    for name, value in arguments.items():
        _read_variable((False, name), value, text, key, tensors, depth + 1)


@functools.lru_cache(maxsize=4096)
def _objection_to(function):
    """Why it isn't known what a library's function answers; None where that follows from its arguments and a key's state."""
    if is_pure(function):
        return None
    tensors = []
    try:
        _read_text(function, {}, [], tensors, 1)
    except (NotKnown, RecursionError) as reason:
        return f"calls {function.__qualname__}(), which {reason}"
    return f"calls {function.__qualname__}(), which reads tensors" if tensors else None


def _read_variable(variable, value, text, key, tensors, depth):
    """Adds a function's variable to the key; of an object only what the function's text reads of it."""
    kind = type(value)
    try:
        if is_whole(value):
            if text.unseen and variable in text.unseen:
                _check_own(value, text.unseen[variable])
            _read(value, key, tensors, depth)
        elif kind is types.ModuleType and is_of_library(value.__name__):
            reason = _objection_to_module(variable, value, text)
            if reason is not None:
                raise NotKnown(*reason)
            key += (kind, value)
        else:
            for chain, line in text.uses.get(variable, ()):
                _read_chain(value, chain, line, key, tensors, depth)
    except NotKnown as reason:
        raise (NotKnown(reason.what, text.uses[variable][0][1]) if reason.line is None and variable in text.uses else reason) from None


def _check_own(value, asked):
    """Raises NotKnown unless a text asks a value for numbers alone that somebody gave it as attributes."""
    own = value.__dict__ if type(value) in _TENSORS else {}
    for name, line in asked:
        if not _is_number(own.get(name, ABSENT)):
            raise NotKnown(f"asks for {name!r}", line)


def _read_chain(value, chain, line, key, tensors, depth):
    """Adds to the key what a text's chain of attributes and items finds in a variable's value."""
    at = 0
    try:
        for step in chain:
            if is_whole(value) or value is ABSENT:
                break
            held = contents(value)
            if type(step) is Item:
                if held is None:
                    break
                value = item_of(held, step.key)
            elif held is not None and is_seen(step):
                break
            else:
                value = look_up(value, step)
            at += 1
        if at < len(chain):
            asked = next((name for name in chain[at:] if type(name) is str and not is_seen(name)), None)
            if asked is not None:
                raise NotKnown(f"asks for {asked!r}")
        key.append(at)
        key.append(ABSENT) if value is ABSENT else _read(value, key, tensors, depth)
    except NotKnown as reason:
        raise (NotKnown(reason.what, line) if reason.line is None else reason) from None


@functools.lru_cache(maxsize=4096)
def _objection_to_module(variable, module, text):
    """(what, line) of a NotKnown of what a text reads of a library's module, whose attributes are taken for constants; None where it is known."""
    for chain, line in text.uses[variable]:
        try:
            if not chain:
                raise NotKnown(f"reads the module {module.__name__} as a whole", line)
            _read_chain(module, chain, line, [], [], 1)
        except NotKnown as reason:
            return reason.what, reason.line
    return None


def is_whole(value):
    return type(value) in _READ_AS_A_WHOLE or is_sharded(value)


def _is_number(value):
    return type(value) in _PLAIN or type(value) is float


# Any other value is read as far as a text asks it.
_READ_AS_A_WHOLE = {types.FunctionType, *_TENSORS, float, *_PLAIN, slice, functools.partial, types.BuiltinFunctionType, types.MethodType, OpenNumber}


@functools.lru_cache(maxsize=4096)
def is_of_library(module):
    return module.split(".")[0] in _LIBRARIES
