"""Which functions answer from their arguments and from what a trace's key holds, so that a kept trace may stand for calls of them.

Questions to tensors are seen while a function is traced (trace_modes): one that isn't listed here, and computes no tensor, makes a trace that isn't
kept. Calls that no mode sees are judged where a function's text names them (function_keys).
"""

import builtins
import functools
import math
import operator

import torch
from torch._jit_internal import is_scripting
from torch.jit._trace import is_tracing
from torch.overrides import get_overridable_functions

# Tensors answer these by rank, dtype, device, layout and requires_grad, and those of _BY_SIZES by sizes and strides: a key has all.
_WITHOUT_SIZES = (
    *("ndim", "dim", "ndimension", "dtype", "device", "layout", "itemsize", "element_size", "is_floating_point", "is_complex", "is_signed"),
    *("is_cuda", "is_cpu", "is_meta", "is_sparse", "is_quantized", "get_device", "requires_grad", "is_neg", "is_conj"),
)
_BY_SIZES = ("shape", "size", "numel", "nelement", "nbytes", "__len__", "is_same_size", "stride", "is_contiguous")
_OF_TORCH_WITHOUT_SIZES = ("is_floating_point", "is_complex", "is_signed", "result_type", "promote_types", "can_cast", "get_device")
_OF_TORCH_BY_SIZES = ("is_same_size", "numel")
# Python's functions that no state decides. Of tensors they ask what a mode sees, too.
_BUILTINS = (
    *("abs", "all", "any", "bool", "callable", "chr", "complex", "dict", "divmod", "enumerate", "filter", "float", "format", "frozenset", "int"),
    *("isinstance", "issubclass", "iter", "len", "list", "map", "max", "min", "next", "object", "ord", "pow", "print", "range", "repr", "reversed"),
    *("round", "set", "slice", "sorted", "str", "sum", "tuple", "type", "zip"),
)
_FINDERS = ("attrgetter", "methodcaller", "is_", "is_not")  # of operator
_TYPES = (torch.Tensor, torch.nn.Parameter, torch.Size, torch.dtype, torch.device, torch.layout, torch.finfo, torch.iinfo)
_MODES = (torch.no_grad, torch.enable_grad, torch.set_grad_enabled)
# These ask for state that is in each key (function_keys.ambient_state), or that is decided before a function is traced.
_OF_KEYED_STATE = (
    *(torch.is_grad_enabled, torch.get_default_dtype, torch.get_default_device, torch.is_autocast_enabled, torch.get_autocast_dtype),
    *(torch.are_deterministic_algorithms_enabled, torch._C._get_deterministic_algorithms),
    *(torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling, torch.compiler.is_exporting),
    *(is_scripting, is_tracing, torch.is_tensor),
)
_OF_CONTAINERS = (dict, list, tuple, str, bytes, int, float, slice, range, torch.Size, torch.dtype, torch.device, torch.finfo, torch.iinfo)


def _of_tensors(name):
    found = getattr(torch.Tensor, name)
    return found if callable(found) else found.__get__


_WITHOUT_SIZES = frozenset([*map(_of_tensors, _WITHOUT_SIZES), *(getattr(torch, name) for name in _OF_TORCH_WITHOUT_SIZES)])
_ANSWERS = _WITHOUT_SIZES.union(map(_of_tensors, _BY_SIZES), (getattr(torch, name) for name in _OF_TORCH_BY_SIZES))
_SEEN = frozenset(name for kind in (torch.Tensor, *_OF_CONTAINERS) for name in dir(kind) if not name.startswith("_"))


def answers_by_key(function):
    """Whether a function that a mode sees answers by what a trace's key has of its tensors."""
    return function in _ANSWERS


def answers_without_sizes(function):
    """Whether a function that a mode sees says nothing of its tensors' sizes and strides. A tensor that is indexed is the tracer's to judge."""
    return function in _WITHOUT_SIZES or function is torch.Tensor.__getitem__


def is_seen(attribute):
    """Whether an attribute is one of tensors, which a mode sees, or of Python's containers and numbers, whose answers follow from what they are."""
    return attribute in _SEEN


@functools.cache
def _pure():
    modules = (*(getattr(torch._C, name) for name in ("_nn", "_special", "_linalg", "_fft", "_VariableFunctions")), math, operator)
    found = [value for module in modules for name in dir(module) if name not in (*_FINDERS, "is_vulkan_available") and callable(value := getattr(module, name))]
    found += [value for values in get_overridable_functions().values() for value in values]
    return frozenset([*found, *(getattr(builtins, name) for name in _BUILTINS), *_TYPES, *_MODES, *_OF_KEYED_STATE])


def is_pure(value):
    """Whether a function or a type answers from its arguments and keys, or comes to a tracer's mode when it is called."""
    if isinstance(value, type) and issubclass(value, BaseException) and value.__module__ == "builtins":
        return True
    return value in _pure()


def is_pure_builtin(name):
    """is_pure() for a name without a variable; a name that Python doesn't have counts too, for reading it raises NameError."""
    found = getattr(builtins, name, None)
    return found is None or isinstance(found, (bool, str, type(Ellipsis), type(NotImplemented))) or is_pure(found)
