"""Traces that are kept for functions that are what they were: tracing takes a hundred times as long as seeing that.

A function is known by its code and by all that it reads: numbers by value, tensors by what they look like, other functions likewise, and of objects, such as
modules, the attributes that its text names (attributes.py). Where it reads anything else, such as a dict, a property or a module that it imports itself, or
a tensor's numbers while it is traced, it is traced each time.
"""

import dis
import functools
import types

import torch

from scoremod.torch.attributes import ABSENT, NotKnown, chains, look_up
from scoremod.torch.bounded_cache import BoundedCache
from scoremod.torch.captures import Computed, Read
from scoremod.torch.dtensors import is_sharded
from scoremod.torch.trace import Tracer

_kept = BoundedCache(512)

_PLAIN = {int, bool, str, bytes, type(None), torch.dtype, torch.device, type(Ellipsis)}
_TENSORS = (torch.Tensor, torch.nn.Parameter)
# Modules whose attributes are taken for constants, and functions of which are what they are called.
_LIBRARIES = ("torch", "math", "operator", "builtins")
# Built-in functions that find what is no variable of their caller.
_FINDERS = {"globals", "vars", "eval", "exec", "__import__"}
# Kinds of values that are read as a whole.
_KNOWN = {types.FunctionType, *_TENSORS, float, *_PLAIN, slice, tuple, list, functools.partial, types.BuiltinFunctionType, type, types.MethodType}


class KeptTrace:
    """A program, and how the operands' tensors come from the captured ones: (number of the captured tensor, source) each."""

    def __init__(self, program, sources):
        self.program, self.sources = program, sources
        self.texts = {}

    def bound(self, tensors):
        """The sources for these captured tensors."""
        return [rebased(source, tensors[number]) for number, source in self.sources]


class _Captured:
    """What stands for a Value of a captured tensor."""

    is_uniform = True

    def __init__(self, tensor):
        self.tensor = tensor


def kept_trace(functions, key, tensors, extents, device, whole=None):
    """(KeptTrace, sources, whether the trace is kept) of two functions, score_mod and mask_mod, which are traced if that isn't known; the same for
    what can't be kept. key, tensors: those of key_of(), of which DTensors are whole(DTensor)."""
    if not all(isinstance(size, int) for size in extents.sizes().values()):
        key = None  # sizes that torch.export leaves open
    if key is not None:
        key = (key, extents, device, *((t.shape, t.dtype, t.device) for t in tensors))
        found = _kept.get(key)
        if found is not None:
            return found, found.bound(tensors), True
    tracer = Tracer(extents, device, whole)
    program, sources = tracer.trace(*functions)
    numbers = [_number_of(source, tensors) for source in sources]
    is_kept = key is not None and not tracer.read_numbers and None not in numbers
    if not is_kept:
        return KeptTrace(program, list(zip(numbers, sources))), sources, False
    found = _kept[key] = KeptTrace(program, [(number, rebased(source, None)) for number, source in zip(numbers, sources)])
    return found, sources, True


def rebased(source, tensor):
    """The source that reads this tensor instead."""
    return source._replace(base=_Captured(tensor)) if isinstance(source, Read) else source._replace(value=_Captured(tensor))


def tensor_of(source):
    """The tensor that a source reads; None where it reads what is computed of tensors."""
    value = source.base if isinstance(source, Read) else source.value if isinstance(source, Computed) and source.value.is_uniform else None
    return None if value is None else value.tensor


def _number_of(source, tensors):
    """Which of the captured tensors a source reads; None where it reads none of them."""
    read = tensor_of(source)
    return next((i for i, tensor in enumerate(tensors) if tensor is read), None)


class _Unknown(Exception):
    """What a function reads isn't known by a value."""


def key_of(score_mod, mask_mod):
    """(key, tensors): what the functions are, with the numbers of the tensors that they read; (None, []) where that isn't known."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return None, []
    key, tensors = [], []
    try:
        _read(score_mod, key, tensors, 0)
        _read(mask_mod, key, tensors, 0)
    except (_Unknown, NotKnown):
        return None, []
    return tuple(key), tensors


def _read(value, key, tensors, depth):
    """Appends to the key what a value is: its kind first, which says how much follows."""
    kind = type(value)
    if kind is types.FunctionType:
        _read_function(value, key, tensors, depth)
    elif kind in _TENSORS:
        key += (torch.Tensor, _number_in(tensors, value))
        if value.__dict__:
            key.append(tuple((name, each) for name, each in value.__dict__.items() if _is_number(each)))
    elif kind is float:
        key += (kind, value.hex())  # which tells 0.0 from -0.0
    elif kind in _PLAIN:
        key += (kind, value)
    elif kind is types.ModuleType:
        if not _is_of_library(value.__name__):
            raise _Unknown
        key += (kind, value)
    else:
        _read_other(value, kind, key, tensors, depth)


def _read_other(value, kind, key, tensors, depth):
    if depth > 8:
        raise _Unknown
    if kind is slice:
        key += (kind, value.start, value.stop, value.step)
    elif kind in (tuple, list):
        key += (kind, len(value))
        for each in value:
            _read(each, key, tensors, depth + 1)
    elif kind is functools.partial:
        key += (kind, len(value.args), tuple(value.keywords))
        for each in (value.func, *value.args, *value.keywords.values()):
            _read(each, key, tensors, depth + 1)
    elif kind is types.MethodType and isinstance(value.__func__, types.FunctionType) and value.__func__.__code__.co_argcount:
        key.append(kind)
        _read_function(value.__func__, key, tensors, depth + 1, {value.__func__.__code__.co_varnames[0]: value.__self__})
    elif kind in (types.BuiltinFunctionType, type) and _is_of_library(value.__module__ or "builtins"):
        if kind is not type and value.__self__ is not None and not isinstance(value.__self__, types.ModuleType):
            raise _Unknown
        key += (kind, value)
    elif is_sharded(value):
        key += (kind, value.placements, _number_in(tensors, value))
    else:
        raise _Unknown


def _number_in(tensors, value):
    for number, tensor in enumerate(tensors):
        if tensor is value:
            return number
    tensors.append(value)
    return len(tensors) - 1


def _read_function(function, key, tensors, depth, arguments={}):
    """arguments: name -> object, of those that the function is called with each time."""
    code, namespace = function.__code__, function.__globals__
    # By where its text is: functools.wraps gives a function of the user's the module of a library's.
    is_of_library = _is_of_library(namespace.get("__name__") or "")
    if is_of_library and function.__closure__ is None:
        key += (types.FunctionType, function)
        return
    reads_elsewhere, names = _text_of(code)
    if depth > 8 or function.__dict__ or reads_elsewhere:  # attributes, too, are what a program may depend on
        raise _Unknown
    defaults, keywords = function.__defaults__ or (), function.__kwdefaults__ or {}
    key += (types.FunctionType, code, len(defaults), tuple(keywords))
    try:
        for name, cell in zip(code.co_freevars, function.__closure__ or ()):
            _read_variable(name, cell.cell_contents, code, key, tensors, depth + 1)
    except ValueError:  # a name that isn't bound yet
        raise _Unknown from None
    for each in (*defaults, *keywords.values()):
        _read(each, key, tensors, depth + 1)
    for name in () if is_of_library else names:
        if name in namespace:
            _read_variable(name, namespace[name], code, key, tensors, depth + 1)
        else:
            key.append(ABSENT)
    for name, value in arguments.items():
        _read_variable(name, value, code, key, tensors, depth + 1)


def _read_variable(name, value, code, key, tensors, depth):
    """What a function's variable is: of an object, what the function's text reads of it."""
    if type(value) in _TENSORS and value.__dict__:
        _, names = _text_of(code)
        if any(attribute in names and not _is_number(each) for attribute, each in value.__dict__.items()):
            raise _Unknown
    if not _is_object(value):
        _read(value, key, tensors, depth)
        return
    for chain in chains(code, name):
        found, names = value, list(chain)
        while names and _is_object(found):
            found = look_up(found, names.pop(0))
        if _is_object(found):
            raise _Unknown
        key.append(len(names))
        _read(found, key, tensors, depth) if found is not ABSENT else key.append(ABSENT)


def _is_number(value):
    return type(value) in _PLAIN or type(value) is float


def _is_object(value):
    """Whether a value is one of those that attributes are read of, and nothing is known as a whole."""
    if type(value) is types.ModuleType:
        return not _is_of_library(value.__name__)
    return value is not ABSENT and type(value) not in _KNOWN and not is_sharded(value)


@functools.lru_cache(maxsize=4096)
def _is_of_library(module):
    return module.split(".")[0] in _LIBRARIES


@functools.lru_cache(maxsize=4096)
def _text_of(code):
    """(whether a function's text, or that of a function within, reads what is none of its variables: it imports a module, or finds variables by name; the
    global names of these texts)."""
    imported = [step.argval for step in dis.get_instructions(code) if step.opname == "IMPORT_NAME"]
    reads_elsewhere = not _FINDERS.isdisjoint(code.co_names) or not all(map(_is_of_library, imported))
    names = list(code.co_names)
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            within, of_each = _text_of(each)
            reads_elsewhere |= within
            names += of_each
    return reads_elsewhere, tuple(dict.fromkeys(names))
