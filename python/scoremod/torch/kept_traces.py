"""Traces that are kept for functions that are what they were: tracing takes a hundred times as long as seeing that.

A trace is kept only where all that the functions read is in its key (function_keys), and where they asked tensors for nothing else while they were
traced (trace_modes). Any other is made at each call, and says so: a warning names the line, and explain does. Sizes are in no key: a trace serves all
at which the questions that it asked of them have the same answers (asked_sizes).
"""

import sys
import types
import warnings

import torch

from scoremod.bounded_cache import BoundedCache
from scoremod.changing_constants import warn_of_changing_constants
from scoremod.torch.asked_sizes import AskedExtents, answer_alike
from scoremod.torch.captures import Computed, Read
from scoremod.torch.function_keys import why_not_known
from scoremod.torch.trace import OWN_FOLDERS, Tracer

# key -> a tuple of KeptTraces, the newest first.
_kept = BoundedCache(512)
# Traces of one key, which differ in the answers of sizes.
_MOST_ANSWERS = 8

# Functions' codes that were traced without a key -> whether that was said.
_told = BoundedCache(1024)


class KeptTrace:
    """A program, and how the operands' tensors come from the captured ones: (number of the captured tensor, source) each.

    why_not_kept: what the functions do that makes another trace at the next call; "" for a trace that is kept.
    guards: those of asked_sizes.AskedExtents.
    numbers: changing_numbers.NumberOperands, whose tensors come after the captured ones.
    sized: the numbers of the captured tensors whose sizes or strides the program may follow from (trace.Tracer).
    """

    def __init__(self, program, sources, why_not_kept="", guards=(), numbers=(), sized=()):
        self.program, self.why_not_kept, self.guards, self.numbers, self.sized = program, why_not_kept, guards, numbers, sized
        self._sources = sources
        self.texts = {}

    def hangs_on_sizes(self):
        """Whether its sources differ by the sizes, or the offsets, of a call."""
        return any(getattr(source, "axes", None) or isinstance(source.limit, tuple) for _, source in self._sources)

    def has_limits(self):
        """Whether the integers that it may read are limited by the sizes of a call."""
        return any(isinstance(source.limit, tuple) for _, source in self._sources)

    def at(self, extents):
        """The sources for a call of these Extents."""
        return [(number, source.at(extents)) for number, source in self._sources]

    def bound(self, tensors, extents):
        """The sources for a call of these Extents, with these captured tensors."""
        return [rebased(source.at(extents), tensors[number]) for number, source in self._sources]


class _Captured:
    """A stand-in for the Value of a captured tensor."""

    is_uniform, deps = True, frozenset()

    def __init__(self, tensor):
        self.tensor = tensor


def kept_trace(functions, key, tensors, extents, device, whole=None):
    """(KeptTrace, sources, whether the trace is kept) of two functions, score_mod and mask_mod, which are traced if that isn't known; the same for
    what can't be kept. key, tensors: those of key_of(), of which DTensors are whole(DTensor)."""
    asked = AskedExtents(extents)
    if key is not None and not asked.is_open:
        key = trace_key(key, tensors, extents, device)
        found = known_trace(key, extents)
        if found is not None:
            return found, found.bound(tensors, extents), True
    tracer = Tracer(asked, device, whole)
    program, sources = tracer.trace(*functions)
    warn_of_changing_constants(program, "torch.tensor(x)", _depth_of_caller())
    numbers = [number_of(source, tensors) for source in sources]
    bound = [source.at(extents) for source in sources]
    if key is None or asked.is_open or tracer.asked is not None or None in numbers:
        why_not = _why_not_kept(functions, key, tracer, sources, numbers)
        if why_not and not asked.is_open:
            _tell(functions, why_not)
        return KeptTrace(program, list(zip(numbers, sources)), why_not), bound, False
    unbound = [(number, rebased(source, None)) for number, source in zip(numbers, sources)]
    found = KeptTrace(program, unbound, guards=asked.guards(), sized=sized_among(tensors, tracer))
    keep_trace(key, found)
    return found, bound, True


def trace_key(key, tensors, extents, device):
    """The key of a trace, but for sizes."""
    return (key, extents.are_limits, extents.is_part, device, *map(_looks_of, tensors))


def known_trace(key, extents):
    """The KeptTrace of a trace_key() that is the one of these Extents, too; None where there is none."""
    for found in _kept.get(key, ()):
        if answer_alike(found.guards, extents):
            return found
    return None


def keep_trace(key, traced):
    _kept[key] = (traced, *_kept.get(key, ()))[:_MOST_ANSWERS]


def sized_among(tensors, tracer):
    """KeptTrace.sized of these captured tensors."""
    return tuple([number for number, tensor in enumerate(tensors) if id(tensor) in tracer.sized])


def _looks_of(tensor):
    """The properties of a tensor that functions may ask for (pure_functions.answers_by_key)."""
    lies = tensor.stride() if tensor.layout is torch.strided else tensor.layout
    return tensor.shape, tensor.dtype, tensor.device, lies, tensor.requires_grad, tensor.is_neg()


def _why_not_kept(functions, key, tracer, sources, numbers):
    """The reason in the functions why a trace isn't kept; "" where it isn't theirs."""
    if key is None:
        return why_not_known(*functions) or ""
    if tracer.asked is not None:
        return tracer.asked
    computed = next((source for number, source in zip(numbers, sources) if number is None), None)
    return "" if computed is None else f"computes a tensor with PyTorch at {tracer.line_of(computed)}"


def _tell(functions, why_not):
    """Warns, once for each pair of functions, where they are traced for the second time."""
    codes = tuple(_code_of(function) for function in functions)
    said = _told.get(codes)
    if said is None:
        _told[codes] = False
    elif not said:
        _told[codes] = True
        warnings.warn(
            f"score_mod or mask_mod is traced anew at each call, which takes about a hundred times as long as a call: it {why_not}. Take what it needs into "
            "a variable of the function around it first, as a tensor, a number, or a list or dict of them; explain() says this, too",
            stacklevel=_depth_of_caller(),
        )


def _code_of(function):
    if isinstance(function, types.MethodType):
        function = function.__func__
    return getattr(function, "__code__", type(function))


def _depth_of_caller():
    """How many frames above the caller of this the first one stands that is neither scoremod's nor PyTorch's."""
    frame, depth = sys._getframe(2), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(OWN_FOLDERS):
        frame, depth = frame.f_back, depth + 1
    return depth


def rebased(source, tensor):
    """The source that reads this tensor instead."""
    return source._replace(base=_Captured(tensor)) if isinstance(source, Read) else source._replace(value=_Captured(tensor))


def tensor_of(source):
    """The tensor that a source reads; None where it reads what is computed of tensors."""
    value = source.base if isinstance(source, Read) else source.value if isinstance(source, Computed) and source.value.is_uniform else None
    return None if value is None else value.tensor


def number_of(source, tensors):
    """Which of the captured tensors a source reads; None where it reads none of them."""
    read = tensor_of(source)
    return next((i for i, tensor in enumerate(tensors) if tensor is read), None)
