"""Calls of flex_attention that differ from an earlier one in addresses alone, found by what the caller's arguments are: such a call asks for nothing else.

A Site is all calls with functions of the same text and the same arguments beside tensors. Each of its Entries is for tensors of one look. A guard of PyTorch's
compares that in one call, and the modes that the tensors meet. Watches see whether the functions read what they read (watches). Any other call goes by
eager_calls, and is remembered here.
"""

import functools

import torch
from torch.autograd import forward_ad

from scoremod.environment import settings
from scoremod.torch.checked_integers import has_lengths
from scoremod.torch.bounded_cache import BoundedCache
from scoremod.torch.eager_calls import EagerCall
from scoremod.torch.resized_calls import Resizing
from scoremod.torch.sequences import known_lengths
from scoremod.torch.watches import watch_of

try:
    from torch._C._dynamo.guards import TensorGuards
except ImportError:  # then nothing is remembered
    TensorGuards = None

_sites = BoundedCache(512)
# A site of functions that read something else each time would only cost time.
_CALLS_BEFORE_GUARD = 2  # to make a guard takes as long as some calls without it
_MAX_VARIANTS, _MAX_SIZES, _MAX_REMEMBERED = 8, 256, 2048

_default_dtype, _is_grad_enabled, _count_threads = torch.get_default_dtype, torch.is_grad_enabled, torch.get_num_threads
_is_deterministic, _any_autocast = torch._C._get_deterministic_algorithms, torch._C._is_any_autocast_enabled
_count_modes, _count_function_modes = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack
_NO_MODES = (False, 0, 0)


def _state():
    """All of PyTorch's and the environment's settings that decide what a call is, but for what guards see; None within modes."""
    if (_any_autocast(), _count_modes(), _count_function_modes()) != _NO_MODES or forward_ad._current_level >= 0:
        return None
    return _default_dtype(), _is_grad_enabled(), _is_deterministic(), _count_threads(), settings()


def repeated(query, key, value, score_mod, mask_mod, given, plain, out=None):
    """(o, lse, largest scores, largest magnitude) of a call like one that was remembered; None of any other. given: lengths, q_offsets, kv_offsets, page_table
    and sink; plain: the arguments that are no tensors; out: what o may be written to."""
    try:
        site = _sites.get(_key_of(score_mod, mask_mod, given, plain))
    except (AttributeError, TypeError):  # what is called has no text, or what is given no hash
        return None
    if site is None:
        return None
    state = _state()
    for variant in site.variants:
        if variant.state == state:
            tensors = [query, key, value]
            if variant.score_mod(score_mod, tensors) and variant.mask_mod(mask_mod, tensors):
                tensors += [each for each in given if each is not None]
                return variant.serve(tensors, out)
    return None


def _key_of(score_mod, mask_mod, given, plain):
    lengths, q_offsets, kv_offsets, page_table, sink = given
    # Codes by identity, as their own hashes go through all of them; a Site keeps them.
    return (
        *(None if score_mod is None else id(score_mod.__code__), None if mask_mod is None else id(mask_mod.__code__)),
        *(lengths is None, q_offsets is None, kv_offsets is None, page_table is None, sink is None, plain),
    )


def remember(request, call, captured, bound):
    """Lets repeated() know calls like this one. request: the first of repeated()'s arguments; call: the eager_calls.EagerCall that serves it, with these captured tensors and
    those of Call.bound()."""
    query, key, value, score_mod, mask_mod, given, plain = request
    state = _state()
    if state is None or TensorGuards is None or any(each is not None and type(each) is not torch.Tensor for each in given):
        return
    try:
        at = _key_of(score_mod, mask_mod, given, plain)
        site = _sites.get(at)
    except (AttributeError, TypeError):
        return
    watches = watch_of(score_mod), watch_of(mask_mod)
    tensors = [query, key, value]
    if None in watches or not (watches[0](score_mod, tensors) and watches[1](mask_mod, tensors)):
        return
    of_functions = len(tensors)
    tensors += [each for each in given if each is not None]
    entry = _entry(tensors, of_functions, call, captured, bound, _checks(given, plain, tensors))
    if entry is None:
        return
    if site is None:
        site = _sites[at] = Site([each.__code__ for each in (score_mod, mask_mod) if each is not None])
    site.add(state, watches, tensors, entry, (score_mod, mask_mod))


class Site:
    """Calls whose functions have the same texts, and whose arguments are the same beside tensors."""

    def __init__(self, codes):
        self.codes, self.variants, self._count = codes, (), 0

    def add(self, state, watches, tensors, entry, functions):
        self._count += 1
        if self._count > _MAX_REMEMBERED:
            return
        for variant in self.variants:
            if variant.state == state and all(watch(function, []) for watch, function in zip((variant.score_mod, variant.mask_mod), functions)):
                variant.add(tensors, entry)
                return
        variant = Variant(state, *watches)
        variant.add(tensors, entry)
        self.variants = (variant, *self.variants)[:_MAX_VARIANTS]


class Variant:
    """Calls of a Site within one state, whose functions read the same but for addresses. score_mod, mask_mod: their watches."""

    def __init__(self, state, score_mod, mask_mod):
        self.state, self.score_mod, self.mask_mod = state, score_mod, mask_mod
        self._entries, self._last, self._of_any_size, self._resizing = BoundedCache(_MAX_SIZES), None, None, None

    def add(self, tensors, entry):
        self._entries[_looks_of(tensors)] = self._last = entry
        if self._of_any_size is None:
            self._of_any_size, self._resizing = (
                _guard(tensors, is_of_any_size=True),
                None if entry.operands is None else Resizing.of(entry.call, entry.operands),
            )

    def serve(self, tensors, out):
        """The result of a call with these; None where it is none that is known, or whose sizes alone are new."""
        entry = self._last
        if not (entry.guard is not None and entry.guard(*tensors)):
            if not self._of_any_size(*tensors):  # which the looks of tensors, and nothing else, stand beside
                return None
            looks = _looks_of(tensors)
            found = self._entries.get(looks)
            if found is None:
                call = None if self._resizing is None or not entry.has_learned(tensors) else self._resizing.at(tensors, looks)
                if call is None:
                    return None
                found = self._entries[looks] = entry.resized(call, tensors)
            elif found.guard is None:
                found.calls += 1
                if found.calls > _CALLS_BEFORE_GUARD:
                    found.guard = _guard(tensors)
            self._last = entry = found
        return entry.run(tensors, out)


def _guard(tensors, is_of_any_size=False):
    """A function that says whether tensors look like these, in sizes and strides too unless those may be any. None where one tensor comes twice."""
    lies = [([None] * x.dim(), [None] * x.dim()) if is_of_any_size else (list(x.shape), list(x.stride())) for x in tensors]
    guard = TensorGuards(*tensors, dynamic_dims_sizes=[sizes for sizes, _ in lies], dynamic_dims_strides=[strides for _, strides in lies]).check
    return guard if guard(*tensors) else None


def _looks_of(tensors):
    return tuple([(each.shape, each.stride()) for each in tensors])


class Entry:
    """Calls with tensors of the same looks, which come as query, key, value, those that the functions read, and those that are given.

    guard: says whether tensors are of these looks; None before a few calls, of which a size may never have as many. operands: the places of the tensors that the call's operands are; None
    where some are made of them.
    """

    __slots__ = ("_bound", "_captured", "_checks", "_learned", "_of_functions", "call", "calls", "guard", "operands")

    def __init__(self, guard, call, captured, bound, learned, of_functions, checks):
        """captured, bound: places among the tensors. checks: (place, function of a tensor that says whether its numbers are as they have to be) each."""
        self.guard, self.call, self.calls, self._captured, self._bound = guard, call, 0, captured, bound
        self._learned, self._of_functions, self._checks = learned, of_functions, checks
        numbers = call.direct() if type(call) is EagerCall else None
        self.operands = None if numbers is None else [*(captured[number] for number in numbers), *bound]

    def resized(self, call, tensors):
        """The Entry of an EagerCall at the sizes of these tensors."""
        checks = _resized_checks(self._checks, tensors)
        return Entry(None, call, self._captured, self._bound, self._learned, self._of_functions, checks)

    def has_learned(self, tensors):
        """Whether the tensors that functions read require gradients as they did: functions may ask for it, and guards do not see it where gradients are off."""
        return self._learned is None or self._learned == [each.requires_grad for each in tensors[3 : self._of_functions]]

    def run(self, tensors, out):
        if self._learned is not None and not self.has_learned(tensors):
            return None
        for place, holds in self._checks:
            if not holds(tensors[place]):
                return None
        query, key, value = tensors[:3]
        if self.operands is not None:
            return self.call.run(query, key, value, [tensors[place] for place in self.operands], None, None, out)
        return self.call(query, key, value, [tensors[place] for place in self._captured], [tensors[place] for place in self._bound], None, None, out)


def _entry(tensors, of_functions, call, captured, bound, checks):
    """None where the call has other tensors than its caller, or one tensor comes twice, which guards do not take."""
    places = [_place_of(each, tensors) for each in (*captured, *bound)]
    guard = None if None in places or checks is None else _guard(tensors)
    if guard is None:
        return None
    learned = [each.requires_grad for each in tensors[3:of_functions]] if of_functions > 3 else None
    return Entry(guard, call, places[: len(captured)], places[len(captured) :], learned, of_functions, checks)


def _place_of(tensor, tensors):
    return next((place for place, each in enumerate(tensors) if each is tensor), None)


def _checks(given, plain, tensors):
    """An Entry's checks of integers in host memory, whose numbers decide more than a kernel's work; None where nobody checks them here."""
    lengths, q_offsets, kv_offsets, page_table, _ = given
    query, key = tensors[:2]
    if not query.is_cpu:
        return ()
    if q_offsets is None:
        if lengths is None or page_table is not None:  # the library looks at those of pages
            return ()
        most = key.shape[2]
        return ((_place_of(lengths, tensors), functools.partial(has_lengths, most=most)),)
    if lengths is not None:
        return None
    max_length = plain[-1]
    longest = tuple(max_length) if isinstance(max_length, (tuple, list)) else (max_length, max_length)
    checks = []
    for offsets, tensor, most in ((q_offsets, query, longest[0]), (q_offsets if kv_offsets is None else kv_offsets, key, longest[1])):
        checks.append((_place_of(offsets, tensors), _same_lengths(offsets, tensor.shape[0], most)))
    return tuple(checks)


def _resized_checks(checks, tensors):
    """Checks of lengths for another number of keys."""
    return tuple((place, functools.partial(has_lengths, most=tensors[1].shape[2])) for place, _ in checks)


def _same_lengths(offsets, tokens, longest):
    kept = known_lengths(offsets, tokens, longest)
    return lambda each: known_lengths(each, tokens, longest) == kept
