"""Calls of flex_attention that differ from an earlier one in addresses alone, found by what the caller's arguments are: such a call asks for nothing else.

A Site is all calls with functions of the same text and the same arguments beside tensors. Each of its Entries is for tensors of one look. A guard of PyTorch's
compares that in one call, and the modes that the tensors meet. Watches see whether the functions read what they read (watches). The binding goes through all that
for a call that looks as the one before it. Any other call goes by eager_calls, and is remembered here.
"""

from typing import Any, NamedTuple

import torch

from scoremod.bounded_cache import BoundedCache
from scoremod.call_spec import checked_longest
from scoremod.errors import Error
from scoremod.torch.checked_integers import has_lengths
from scoremod.torch.eager_calls import EagerCall
from scoremod.torch.native import binding
from scoremod.torch.prepared_calls import AtNewSizes
from scoremod.torch.resized_calls import Resizing
from scoremod.torch.sequences import has_known_lengths, known_lengths
from scoremod.torch.watches import IS_NONE, watch_of

try:
    from torch._C._dynamo.guards import TensorGuards
except ImportError:  # then nothing is remembered
    TensorGuards = None

_sites = BoundedCache(512)
# A site of functions that read something else each time would only cost time.
_CALLS_BEFORE_GUARD = 64  # to make a guard takes as long as some tens of calls without it
_MAX_VARIANTS, _MAX_SIZES, _MAX_REMEMBERED = 8, 256, 2048


class PlainOptions(NamedTuple):
    """The arguments of a call that are no tensors, as calls are known by. flex_attention makes a mere tuple of them, in this order, which takes less time."""

    scale: float | None
    enable_gqa: bool
    return_lse: bool
    backends: Any
    deterministic: bool | None
    new_sizes: str | None
    max_length: Any


def repeated(query, key, value, score_mod, mask_mod, given, plain, out=None):
    """(o, lse, largest scores, largest magnitude) of a call like one that was remembered; None of any other. given: lengths, q_offsets, kv_offsets, page_table
    and sink; plain: the PlainOptions, in a tuple; out: what o may be written to."""
    return binding.repeated(_sites, query, key, value, score_mod, mask_mod, given, plain, out)


def remember(request, call, captured, bound):
    """Lets repeated() know calls like this one. request: the first of repeated()'s arguments; call: the eager_calls.EagerCall that serves it, with these captured tensors and
    those of Call.bound()."""
    query, key, value, score_mod, mask_mod, given, plain = request
    state = binding.state()
    if state is None or TensorGuards is None or any(each is not None and type(each) is not torch.Tensor for each in given):
        return
    try:
        at = binding.key_of(*request)
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
        site = _sites[at] = Site([each.__code__ for each in (score_mod, mask_mod) if each is not None])
    site.add(state, watches, tensors, Entry(route, checks), (score_mod, mask_mod))


class Site:
    """Calls whose functions have the same texts, and whose arguments are the same beside tensors."""

    def __init__(self, codes):
        self.codes, self.variants, self._count = codes, (), 0

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


class Variant(binding.CallVariant):
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
        given = [None if watch is IS_NONE else watch for watch in watches]
        self.begin(state, *given, self._of_any_size, tuple(self._again), tuple(self._once))

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
        self._entries[entry.looks] = entry
        self._try_first(entry)
        if entry.route.resizing is not None:
            self._resizable = entry

    def _try_first(self, entry):
        self._last = entry
        entry.tell(self)
        return True

    def serve(self, tensors, looks):
        """Whether there is an Entry of these looks, which is the last one then. The last one before it has others, or no guard after some calls."""
        entry = self._last
        if entry.looks == looks:
            return self._try_first(entry.settled(_guard(self._distinct(tensors))))
        resized = None if self._resizable is None else self._resizable.resized(tensors, looks)
        entry = resized or self._entries.get(looks)
        return entry is not None and self._try_first(entry)

    def settle(self, tensors, looks):
        """serve() of looks whose sizes the library has refused: with an attention of their own. False, too, where it has none."""
        resized = None if self._resizable is None else self._resizable.resized(tensors, looks)
        try:
            return resized is not None and self._try_first(resized.settled())
        except Error:
            return False


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

    __slots__ = ("_bound", "_captured", "_is_forward", "_learned", "_operands", "call", "resizing")

    def __init__(self, call, captured, bound, tensors, of_functions):
        """captured, bound: places among the tensors, of which the functions read those from the fourth up to of_functions.

        Functions may ask whether these require gradients, which guards may not see where gradients are off.
        """
        self.call, self._captured, self._bound = call, captured, bound
        self._learned = tuple((place, tensors[place].requires_grad) for place in range(3, of_functions))
        numbers = call.direct() if type(call) is EagerCall else None
        # The places of the operands; None where some are made of the tensors.
        self._operands = None if numbers is None else (*(captured[number] for number in numbers), *bound)
        looks = _looks_of(tensors)
        self.resizing = (
            None if self._operands is None else Resizing.of(call, self._operands, [(captured[number], looks[captured[number]]) for number in call.traced.sized])
        )
        self._is_forward = self._operands is not None and call.takes_all and not call.wants_backward

    def tell(self, variant, looks, guard, checks, at, calls_left):
        """Has the binding's CallVariant take calls of these looks, which pass the guard and the checks, for one like these. at: the Direction of other sizes than those of
        the EagerCall; None of those. calls_left: how many come before their sizes have a guard; -1 where they have."""
        if self._is_forward:
            variant.keep(looks, guard, checks, self._learned, self._operands, self.call.results, at or self.call.compiled.forward, calls_left)
        else:
            variant.keep_function(looks, guard, checks, self._run)

    def _run(self, tensors, out):
        """The result of a call with these tensors."""
        for place, requires_grad in self._learned:
            if tensors[place].requires_grad is not requires_grad:
                return None
        query, key, value = tensors[:3]
        if self._operands is not None:
            return self.call.run(query, key, value, [tensors[place] for place in self._operands], None, None, out)
        return self.call(query, key, value, [tensors[place] for place in self._captured], [tensors[place] for place in self._bound], None, None, out)


class Entry:
    """Calls with tensors of the same looks.

    guard: says whether tensors are of these looks; None of sizes that may not come again. at: the Direction of other sizes than those of the route's EagerCall.
    """

    __slots__ = ("_at", "_checks", "guard", "looks", "route")

    def __init__(self, route, checks, looks=None, at=None, guard=None):
        """checks: (place, function of the tensor there and the key that says whether its numbers are as they have to be) each."""
        self.route, self._checks, self.looks, self.guard = route, checks, looks, guard
        self._at: Any = at

    def resized(self, tensors, looks):
        """The Entry of other sizes; None where the long way is to be gone."""
        at = self.route.resizing.at(tensors, looks)
        checks = None if at is None else self.route.resizing.checks(tensors, self._checks)
        return None if checks is None else Entry(self.route, checks, looks, at)

    def settled(self, guard=None):
        """The Entry of the same sizes, which came again: one whose calls take less time, and which takes more to be made."""
        at = self._at.settled() if type(self._at) is AtNewSizes else self._at
        return Entry(self.route, self._checks, self.looks, at, guard)

    def tell(self, variant):
        """Has the binding's CallVariant take calls for one like these."""
        calls_left = _CALLS_BEFORE_GUARD if type(self._at) is AtNewSizes else -1
        self.route.tell(variant, self.looks, self.guard, self._checks, self._at, calls_left)


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
    return tuple([(_place_of(offsets, tensors), has_known_lengths(known_lengths(offsets, *others), *others)) for offsets, *others in sides])
