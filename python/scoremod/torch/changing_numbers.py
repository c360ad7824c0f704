"""Python numbers that change from call to call, such as an annealed temperature. From its second value on such a number is an operand of the
program, if the functions only do arithmetic with it. No other value is then traced and compiled.

Before that, two programs must agree: the one with operands, given these numbers, and the one that was traced for these numbers alone.

A derivative multiplies constants out beforehand, and rounds otherwise than with operands. In deterministic calls, therefore, the numbers themselves
decide: the first ones are constants at each call, and all others are operands at each call. What was first is never forgotten. Functions that come
after the most that can be remembered have constants alone.
"""

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from scoremod.bounded_cache import BoundedCache
from scoremod.fork_safety import Lock
from scoremod.program import Builder
from scoremod.torch.asked_sizes import AskedExtents
from scoremod.torch.function_keys import FLOAT, key_of
from scoremod.torch.kept_traces import KeptTrace, keep_trace, known_trace, number_of, rebased, sized_among, trace_key
from scoremod.torch.open_numbers import NumbersOfTrace, OpenNumber, tensor_of_number
from scoremod.torch.rebuilt_functions import Rebuilding, tells_kinds
from scoremod.torch.trace import Tracer

# A key without its floats -> _Changes; and those of deterministic calls.
_seen, _remembered = BoundedCache(512), BoundedCache(4096)
_lock = Lock(threading.RLock)  # a key's objects may have code of their own
_OPEN = object()


class _Changes:
    """The changes between functions that differ in floats alone.

    first: the first floats. open, fixed: the places in the key of those that are operands, and of those that can't be."""

    def __init__(self, first, is_open=frozenset()):
        self.first, self.open, self.fixed = first, is_open, frozenset()

    def fix(self, places):
        self.fixed |= places
        self.open -= places


class Opened(NamedTuple):
    """Functions of which some floats are operands. key: theirs, without these; values: place in the key -> the float."""

    key: tuple
    values: dict
    changes: _Changes


class NumberOperand(NamedTuple):
    """An operand that is a number: what makes it of an OpenNumber's reads, and the place of each in the functions' key."""

    evaluate: Callable[[dict], Any]
    places: dict

    def tensor(self, values, device):
        return tensor_of_number(self.evaluate({read: values[place] for read, place in self.places.items()}), device)


def opened(key, deterministic):
    """The Opened of functions of this key; None where no float of theirs is an operand. Of deterministic calls all are, once any has changed, or none."""
    places = [i + 1 for i, each in enumerate(key) if each is FLOAT]
    if not places:
        return None
    without = list(key)
    for place in places:
        without[place] = None
    without = tuple(without)
    changes_of = _remembered if deterministic else _seen
    with _lock:  # or threads would each have first numbers of their own
        changes = changes_of.get(without)
        if changes is None:
            if deterministic and changes_of.is_full():
                return None
            changes = changes_of[without] = _Changes({place: key[place] for place in places}, frozenset(places if deterministic else ()))
    changed = {place for place, first in changes.first.items() if key[place] != first}
    if deterministic and not changed:
        return None
    if not changed <= changes.open:
        changes.open |= changed - changes.fixed
    if not changes.open:
        return None
    return _with_open(key, changes)


def _with_open(key, changes):
    is_open = changes.open
    return Opened(tuple(_OPEN if i in is_open else each for i, each in enumerate(key)), {i: float.fromhex(key[i]) for i in is_open}, changes)


def open_trace(functions, key, tensors, extents, device, deterministic):
    """(Opened, KeptTrace, sources, tensors of its numbers) of functions of this key, of which some floats are operands; None where none can be."""
    while (found := opened(key, deterministic)) is not None:
        kept_key = trace_key(found.key, tensors, extents, device)
        traced = known_trace(kept_key, extents)
        if traced is None:
            traced = _traced(functions, key, found, tensors, extents, device)
            if traced is None:
                continue  # with fewer floats
            keep_trace(kept_key, traced)
        numbers = numbers_of(traced.numbers, found, device)
        return found, traced, traced.bound([*tensors, *numbers], extents), numbers
    return None


def numbers_of(operands, found, device):
    """Tensors of NumberOperands for an Opened."""
    return [each.tensor(found.values, device) for each in operands]


def _traced(functions, key, found, tensors, extents, device):
    """The KeptTrace; None where some open floats can't be operands, which then are fixed."""
    changes, is_open = found.changes, frozenset(found.values)
    rebuilt = _rebuilt(functions, key, tensors, None)
    if rebuilt is None:
        changes.fix(is_open)
        return None
    _, _, places = rebuilt
    chosen = {read for read, place in places.items() if place in is_open}
    unfound = is_open - {places[read] for read in chosen}
    if unfound:
        changes.fix(unfound)
        return None
    score_mod, mask_mod, rebuilding = _rebuild(functions, chosen)
    numbers, asked = NumbersOfTrace(device), AskedExtents(extents)
    tracer = Tracer(asked, device, numbers=numbers)
    try:
        program, sources = tracer.trace(score_mod, mask_mod)
    except Exception:  # such as a refusal: a trace of the numbers themselves says what there is to say
        changes.fix(frozenset(places[read] for read in rebuilding.is_read) or is_open)
        return None
    if rebuilding.is_read:
        changes.fix(frozenset(places[read] for read in rebuilding.is_read))
        return None
    made = numbers.made()
    at = [number_of(source, [*tensors, *(tensor for _, tensor in made)]) for source in sources]
    if tracer.asked is not None or None in at or not _is_as_plain(functions, program, at, made, tensors, extents, device):
        changes.fix(is_open)
        return None
    operands = tuple(NumberOperand(number.evaluate, {read: places[read] for read in number.reads}) for number, _ in made)
    unbound = [(number, rebased(source, None)) for number, source in zip(at, sources)]
    return KeptTrace(program, unbound, guards=asked.guards(), numbers=operands, sized=sized_among(tensors, tracer))


def _rebuild(functions, chosen):
    rebuilding = Rebuilding(chosen)
    return *(rebuilding.whole(function) for function in functions), rebuilding


def _rebuilt(functions, key, tensors, chosen):
    """(score_mod, mask_mod, read -> place in the key) of functions with OpenNumbers, or None where they do not read what the functions read."""
    if tells_kinds(key):
        return None
    try:
        score_mod, mask_mod, rebuilding = _rebuild(functions, chosen)
        found, read = key_of(score_mod, mask_mod)
    except Exception:  # objects may refuse to be copied
        return None
    if found is None or len(found) != len(key) or rebuilding.is_read or len(read) != len(tensors) or any(x is not y for x, y in zip(read, tensors)):
        return None
    places = {}
    for i, (each, before) in enumerate(zip(found, key)):
        if type(each) is OpenNumber:
            (number,) = each.reads
            if key[i - 1] is not FLOAT or each.value.hex() != before or places.setdefault(number, i) != i:
                return None
        elif each is not before and each != before:
            return None
    return score_mod, mask_mod, places


def _is_as_plain(functions, program, at, made, tensors, extents, device):
    """Whether a program with its numbers put in, and what it reads, are what a trace of the functions as they are has."""
    tracer = Tracer(AskedExtents(extents), device)
    plain, sources = tracer.trace(*functions)
    values = {operand: made[number - len(tensors)][0].value for operand, number in enumerate(at) if number >= len(tensors)}
    builder = Builder()
    for operand in program.operands:
        builder.operand(operand)
    written = []
    for node in program.nodes:
        if node.op == "operand" and node.payload in values:
            written.append(builder.constant(values[node.payload], "f32"))
        else:
            written.append(builder.node(node.op, node.type, *(written[arg] for arg in node.args), payload=node.payload))
    with_values, order = builder.finish(written[program.value], None if program.keep is None else written[program.keep])
    return with_values == plain and [at[number] for number in order] == [number_of(source, tensors) for source in sources]
