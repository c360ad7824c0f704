"""Traces that are kept for functions that are what they were: tracing takes a hundred times as long as seeing that.

A function is known by its code and by all that it reads: numbers by value, tensors by what they look like, other functions likewise. Where it reads
anything else, such as an object's attributes, or a tensor's numbers while it is traced, it is traced each time.
"""

import functools
import types

import torch

from scoremod.torch.captures import Computed, Read
from scoremod.torch.trace import Tracer

_MAX_KEPT = 512
_kept = {}

_PLAIN = (int, bool, str, bytes, type(None), torch.dtype, torch.device, type(Ellipsis))
# Modules whose attributes are taken for constants, and functions of which are what they are called.
_LIBRARIES = ("torch", "math", "operator", "builtins")


class KeptTrace:
    """A program, and how the operands' tensors come from the captured ones: (number of the captured tensor, source) each."""

    def __init__(self, program, sources):
        self.program, self._sources = program, sources
        self.texts = {}

    def bound(self, tensors):
        """The sources for these captured tensors."""
        return [_rebased(source, tensors[number]) for number, source in self._sources]


class _Captured:
    """What stands for a Value of a captured tensor."""

    is_uniform = True

    def __init__(self, tensor):
        self.tensor = tensor


def kept_trace(score_mod, mask_mod, extents, device):
    """(KeptTrace, sources) of two functions, which are traced if that isn't known; the same for what can't be kept."""
    key, tensors = None, []
    if torch._C._functorch.peek_interpreter_stack() is None:
        key = _key_of((score_mod, mask_mod), tensors)
    if key is not None:
        key = (key, extents, device, *((t.shape, t.dtype, t.device) for t in tensors))
        found = _kept.get(key)
        if found is not None:
            return found, found.bound(tensors)
    tracer = Tracer(extents, device)
    program, sources = tracer.trace(score_mod, mask_mod)
    numbers = [_number_of(source, tensors) for source in sources]
    found = KeptTrace(program, list(zip(numbers, sources)))
    if key is not None and not tracer.read_numbers and None not in numbers:
        while len(_kept) >= _MAX_KEPT:
            _kept.pop(next(iter(_kept)), None)
        _kept[key] = KeptTrace(program, [(number, _rebased(source, None)) for number, source in zip(numbers, sources)])
    return found, sources


def _rebased(source, tensor):
    return source._replace(base=_Captured(tensor)) if isinstance(source, Read) else source._replace(value=_Captured(tensor))


def _number_of(source, tensors):
    """Which of the captured tensors a source reads; None where it reads what is computed of them."""
    value = source.base if isinstance(source, Read) else source.value if isinstance(source, Computed) and source.value.is_uniform else None
    if value is None or value.tensor is None:
        return None
    return next((i for i, tensor in enumerate(tensors) if tensor is value.tensor), None)


class _Unknown(Exception):
    """What a function reads isn't known by a value."""


def _key_of(functions, tensors):
    """What the functions are, with the numbers of the tensors that they read, which are appended to `tensors`; None where that isn't known."""
    try:
        return tuple(_part(function, tensors, 0) for function in functions)
    except _Unknown:
        return None


def _part(value, tensors, depth):
    kind = type(value)
    if kind is float:
        return kind, value.hex()  # which tells 0.0 from -0.0
    if kind is slice:
        return kind, value.start, value.stop, value.step
    if kind in _PLAIN:
        return kind, value
    if _attributes_of(value):
        raise _Unknown
    if kind in (torch.Tensor, torch.nn.Parameter):
        number = next((i for i, tensor in enumerate(tensors) if tensor is value), None)
        if number is None:
            number = len(tensors)
            tensors.append(value)
        return torch.Tensor, number
    if depth > 8:
        raise _Unknown
    if kind is types.FunctionType:
        return _function(value, tensors, depth + 1)
    if kind in (tuple, list):
        return kind, tuple(_part(each, tensors, depth + 1) for each in value)
    if kind is functools.partial:
        keywords = tuple((name, _part(each, tensors, depth + 1)) for name, each in value.keywords.items())
        return kind, _part(value.func, tensors, depth + 1), tuple(_part(each, tensors, depth + 1) for each in value.args), keywords
    if kind is types.ModuleType and value.__name__.split(".")[0] in _LIBRARIES:
        return kind, value.__name__
    if kind is types.BuiltinFunctionType and value.__self__ is not None and not isinstance(value.__self__, types.ModuleType):
        raise _Unknown
    if kind in (types.BuiltinFunctionType, type) and (value.__module__ or "builtins").split(".")[0] in _LIBRARIES:
        return kind, value
    raise _Unknown


def _attributes_of(value):
    """The attributes that a function or a tensor was given, which a program may depend on."""
    return isinstance(value, (types.FunctionType, torch.Tensor)) and bool(value.__dict__) and not getattr(value, "__module__", "").startswith("torch")


def _function(function, tensors, depth):
    if (function.__module__ or "").split(".")[0] in _LIBRARIES:
        return types.FunctionType, function
    code = function.__code__
    try:
        closed = [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError:  # a name that isn't bound yet
        raise _Unknown from None
    read = [*closed, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), *_globals_of(code, function.__globals__)]
    return types.FunctionType, code, tuple(_part(each, tensors, depth) for each in read)


def _globals_of(code, namespace):
    """The values of the global names of a function's text, and of the functions within."""
    for name in code.co_names:
        if name in namespace:
            yield namespace[name]
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _globals_of(each, namespace)
