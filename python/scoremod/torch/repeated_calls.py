"""Calls of flex_attention that differ from an earlier one in addresses alone, found by what the caller's arguments are: such a call asks for nothing else.

A Site is all calls with functions of the same text and the same arguments beside tensors. Each of its Entries is for tensors of one look. A guard of PyTorch's
compares that in one call, and the modes that the tensors meet. Watches see whether the functions read what they read (watches). Any other call goes by
eager_calls, and is remembered here.
"""

from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad

from scoremod.bounded_cache import BoundedCache
from scoremod.call_spec import checked_longest
from scoremod.environment import settings
from scoremod.errors import Error
from scoremod.torch.checked_integers import has_lengths
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
_new = object.__new__


class PlainOptions(NamedTuple):
    """The arguments of a call that are no tensors, as calls are known by. flex_attention makes a mere tuple of them, in this order, which takes less time."""

    scale: float | None
    enable_gqa: bool
    return_lse: bool
    backends: Any
    deterministic: bool | None
    new_sizes: str | None
    max_length: Any


def _state():
    """All of PyTorch's and the environment's settings that decide what a call is, but for what guards see; None within modes."""
    if (_any_autocast(), _count_modes(), _count_function_modes()) != _NO_MODES or forward_ad._current_level >= 0:
        return None
    return _default_dtype(), _is_grad_enabled(), _is_deterministic(), _count_threads(), settings()


def repeated(query, key, value, score_mod, mask_mod, given, plain, out=None):
    """(o, lse, largest scores, largest magnitude) of a call like one that was remembered; None of any other. given: lengths, q_offsets, kv_offsets, page_table
    and sink; plain: the PlainOptions, in a tuple; out: what o may be written to."""
    try:
        site = _sites.get(_key_of(query, key, value, score_mod, mask_mod, given, plain))
    except (AttributeError, TypeError):  # what is called has no text, or what is given no hash
        return None
    if site is None:
        return None
    state = _state()
    for variant in site.variants:
        if variant.state == state:
            tensors = [query, key, value]
            if variant.score_mod(score_mod, tensors) and variant.mask_mod(mask_mod, tensors):
                if site.is_given:
                    tensors += [each for each in given if each is not None]
                found = variant.serve(tensors, out)
                if found is not None:
                    return found
    return None


def _key_of(query, key, value, score_mod, mask_mod, given, plain):
    lengths, q_offsets, kv_offsets, page_table, sink = given
    # Codes by identity, as their own hashes go through all of them; a Site keeps them.
    return (
        *(None if score_mod is None else id(score_mod.__code__), None if mask_mod is None else id(mask_mod.__code__)),
        *(query is key, key is value, query is value, lengths is None, q_offsets is None, kv_offsets is None, page_table is None, sink is None, plain),
    )


def remember(request, call, captured, bound):
    """Lets repeated() know calls like this one. request: the first of repeated()'s arguments; call: the eager_calls.EagerCall that serves it, with these captured tensors and
    those of Call.bound()."""
    query, key, value, score_mod, mask_mod, given, plain = request
    state = _state()
    if state is None or TensorGuards is None or any(each is not None and type(each) is not torch.Tensor for each in given):
        return
    try:
        at = _key_of(*request)
        site = _sites.get(at)
    except (AttributeError, TypeError):
        return
    of_score, of_mask = watches = watch_of(score_mod), watch_of(mask_mod)
    tensors = [query, key, value]
    if of_score is None or of_mask is None or not (of_score(score_mod, tensors) and of_mask(mask_mod, tensors)):
        return
    of_functions = len(tensors)
    tensors += [each for each in given if each is not None]
    checks = _checks(given, plain, tensors)
    places = [_place_of(each, tensors) for each in (*captured, *bound)]
    if checks is None or None in places:  # the call has other tensors than its caller
        return
    route = Route(call, places[: len(captured)], places[len(captured) :], tensors, of_functions)
    if site is None:
        site = _sites[at] = Site([each.__code__ for each in (score_mod, mask_mod) if each is not None], len(tensors) > of_functions)
    site.add(state, watches, tensors, Entry(route, checks), (score_mod, mask_mod))


class Site:
    """Calls whose functions have the same texts, and whose arguments are the same beside tensors. is_given: whether tensors are given beside query, key and value."""

    def __init__(self, codes, is_given):
        self.codes, self.is_given, self.variants, self._count = codes, is_given, (), 0

    def add(self, state, watches, tensors, entry, functions):
        self._count += 1
        if self._count > _MAX_REMEMBERED:
            return
        for variant in self.variants:
            # Functions that read the same read as many tensors.
            if variant.state == state and variant.reads_the_same(*functions) and variant.takes(tensors):
                variant.add(tensors, entry)
                return
        variant = Variant(state, watches, tensors)
        if variant.takes(tensors):
            variant.add(tensors, entry)
            self.variants = (variant, *self.variants)[:_MAX_VARIANTS]


class Variant:
    """Calls of a Site within one state, whose functions read the same but for addresses, and whose tensors differ in sizes and strides alone.

    score_mod, mask_mod: their watches.
    """

    def __init__(self, state, watches, tensors):
        self.state, (self.score_mod, self.mask_mod) = state, watches
        firsts = [_place_of(each, tensors) for each in tensors]
        # Guards take no tensor twice: of one that comes again they see the first, and which is which is asked for here.
        self._again = [(place, first) for place, first in enumerate(firsts) if place != first]
        self._once = [place for place, first in enumerate(firsts) if place == first]
        self._entries, self._resizable = BoundedCache(_MAX_SIZES), None  # by their looks
        self._last: Any = None  # the Entry of the last call; each Variant gets one as it is made
        self._of_any_size = _guard(self._distinct(tensors), is_of_any_size=True)

    def reads_the_same(self, score_mod, mask_mod):
        return self.score_mod(score_mod, []) and self.mask_mod(mask_mod, [])

    def _distinct(self, tensors):
        """The tensors, each once; None where others come twice than do here."""
        if not self._again:
            return tensors
        for place, first in self._again:
            if tensors[place] is not tensors[first]:
                return None
        return [tensors[place] for place in self._once]

    def takes(self, tensors):
        """Whether calls with these are of this Variant."""
        distinct = self._distinct(tensors)
        return distinct is not None and self._of_any_size(*distinct)

    def add(self, tensors, entry):
        entry.guard = _guard(self._distinct(tensors))
        entry.looks = _looks_of(tensors)
        self._entries[entry.looks] = self._last = entry
        if entry.route.resizing is not None:
            self._resizable = entry

    def serve(self, tensors, out):
        """The result of a call with these; None where it is none that is known, or whose sizes alone are new."""
        entry, distinct = self._last, tensors if not self._again else self._distinct(tensors)
        if distinct is None:
            return None
        if entry.guard is not None and entry.guard(*distinct):
            return entry.run(tensors, out)
        if not self._of_any_size(*distinct):  # which the looks of tensors, and nothing else, stand beside
            return None
        looks = _looks_of(tensors)
        if entry.looks != looks:
            entry = None if self._resizable is None else self._resizable.resized(tensors, looks)
            entry = entry or self._entries.get(looks)
            if entry is None:
                return None
        elif entry.guard is None:
            entry = entry.again(distinct)
        self._last = entry
        return entry.run(tensors, out)


def _guard(tensors, is_of_any_size=False):
    """A function that says whether tensors, each once, look like these, in sizes and strides too unless those may be any."""
    lies = [([None] * x.dim(), [None] * x.dim()) if is_of_any_size else (list(x.shape), list(x.stride())) for x in tensors]
    sizes: list[Any] = [each for each, _ in lies]
    strides: list[Any] = [each for _, each in lies]
    assert TensorGuards is not None  # remember() asks
    return TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check


def _looks_of(tensors):
    return tuple([(each.shape, each.stride()) for each in tensors])


class Route:
    """How a call's tensors go to an EagerCall. They come as query, key, value, those that the functions read, and those that are given."""

    __slots__ = ("_bound", "_captured", "_learned", "_operands", "_run", "call", "resizing")

    def __init__(self, call, captured, bound, tensors, of_functions):
        """captured, bound: places among the tensors, of which the functions read those from the fourth up to of_functions.

        Functions may ask whether these require gradients, which guards may not see where gradients are off.
        """
        self.call, self._captured, self._bound = call, captured, bound
        self._learned = [(place, tensors[place].requires_grad) for place in range(3, of_functions)]
        numbers = call.direct() if type(call) is EagerCall else None
        # The places of the operands; None where some are made of the tensors.
        self._operands = None if numbers is None else [*(captured[number] for number in numbers), *bound]
        looks = _looks_of(tensors)
        self.resizing = (
            None if self._operands is None else Resizing.of(call, self._operands, [(captured[number], looks[captured[number]]) for number in call.traced.sized])
        )
        self._run: Any = None if self._operands is None else call.forward if call.takes_all and not call.wants_backward else call.run

    def run(self, tensors, out, at):
        """The result of a call with these tensors. at: the Direction of other sizes than those of the EagerCall; None of those."""
        for place, requires_grad in self._learned:
            if tensors[place].requires_grad is not requires_grad:
                return None
        query, key, value = tensors[:3]
        if self._operands is not None:
            return self._run(query, key, value, [tensors[place] for place in self._operands], None, None, out, at)
        return self.call(query, key, value, [tensors[place] for place in self._captured], [tensors[place] for place in self._bound], None, None, out)


class Entry:
    """Calls with tensors of the same looks.

    guard: says whether tensors are of these looks; None of an AtNewSizes'. at: the Direction of other sizes than those of the route's EagerCall.
    """

    __slots__ = ("_at", "_checks", "guard", "looks", "route")

    def __init__(self, route, checks, looks=None, at=None, guard=None):
        """checks: (place, function of the tensor there and the key that says whether its numbers are as they have to be) each."""
        self.route, self._checks, self.looks, self.guard = route, checks, looks, guard
        self._at: Any = at

    def resized(self, tensors, looks):
        """The Entry of other sizes; None where the long way is to be gone."""
        at = self.route.resizing.at(tensors, looks)
        return None if at is None else _OfNewSizes.of(self.route, self._checks, looks, at)

    def run(self, tensors, out):
        for place, holds in self._checks:
            if not holds(tensors[place], tensors[1]):
                return None
        return self.route.run(tensors, out, self._at)


class _OfNewSizes(Entry):
    """The Entry of sizes that may not come again, at an AtNewSizes."""

    __slots__ = ("_calls",)

    @staticmethod
    def of(route, checks, looks, at):
        made = _new(_OfNewSizes)  # a third of the time of __init__()
        made.route, made._checks, made.looks, made.guard, made._at, made._calls = route, checks, looks, None, at, 0
        return made

    def again(self, tensors):
        """The Entry of the same sizes, which come again with these tensors, each once: after a few calls one that takes less time for each, and more to be made."""
        self._calls += 1
        return self if self._calls < _CALLS_BEFORE_GUARD else self._settled(_guard(tensors))

    def _settled(self, guard=None):
        return Entry(self.route, self._checks, self.looks, self._at.settled(), guard)

    def run(self, tensors, out):
        """As an Entry's; None, too, where the library refuses the sizes."""
        try:
            return Entry.run(self, tensors, out)
        except Error:  # of a workspace that is too small, before anything is written
            pass
        try:
            settled = self._settled()
        except Error:
            return None
        return settled.run(tensors, out)


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
        return ((_place_of(lengths, tensors), lambda lengths, key: has_lengths(lengths, key.shape[2])),)
    if lengths is not None:
        return None
    of_queries, of_keys = checked_longest(PlainOptions(*plain).max_length)
    sides = [(q_offsets, query.shape[0], of_queries), (q_offsets if kv_offsets is None else kv_offsets, key.shape[0], of_keys)]
    if sides[0][0] is sides[1][0] and sides[0][1:] == sides[1][1:]:
        del sides[1]
    return tuple([(_place_of(offsets, tensors), _same_lengths(offsets, *others)) for offsets, *others in sides])


def _same_lengths(offsets, tokens, longest):
    kept = known_lengths(offsets, tokens, longest)
    return lambda offsets, _: known_lengths(offsets, tokens, longest) == kept
