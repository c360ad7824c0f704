"""The variables that a function's text reads, what it asks of them, and attributes that it asks of anything else. They are found in the
bytecode, without running it."""

import dataclasses
import dis
import functools
import types
from typing import NamedTuple

from scoremod.torch.pure_functions import is_pure_builtin, is_seen

_LOADS = {"LOAD_DEREF", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW"}
_OF_CELLS = {"LOAD_CLOSURE", "MAKE_CELL", "COPY_FREE_VARS"}  # which hand a variable to a function within
_OF_GLOBALS = {"LOAD_GLOBAL", "LOAD_NAME"}
_ATTRIBUTES = {"LOAD_ATTR", "LOAD_METHOD"}
_SINGLETONS = (None, True, False, Ellipsis)
# Operations whose effect, or whose answer, is in no key of what the function reads.
_OBJECTIONS = {
    "IMPORT_NAME": "imports {!r}",
    "STORE_ATTR": "sets the attribute {!r}",
    "DELETE_ATTR": "deletes the attribute {!r}",
    "STORE_GLOBAL": "sets the global {!r}",
    "DELETE_GLOBAL": "deletes the global {!r}",
    "MATCH_CLASS": "matches a class",
}


class Item(NamedTuple):
    """A step of a chain: indexed by a constant."""

    key: object


@dataclasses.dataclass(frozen=True, eq=False)
class Text:
    """The reads of a text and of the functions within it. A variable is (whether it is global, its name); lines are for messages.

    uses: variable -> ((chain, line), ...). A chain is what is asked of it in a row, ("layer", Item("slopes")) for variable.layer["slopes"]; () where
        it is used in another way.
    unseen: variable -> ((attribute, line), ...): attributes in its chains that no tensor answers under a tracer's eyes.
    loose: the same attributes, asked of what is no variable.
    sets: variables that are set -> line.
    objection: (why nothing is known of the function, line), or None.
    """

    uses: dict
    unseen: dict
    loose: tuple
    sets: dict
    objection: tuple | None


class Reading(NamedTuple):
    """The reads of a Text, for a function that is called with some known arguments.

    objection: as a Text's. cells, globals: its variables of these kinds; impure_builtins: names of globals that, without such a variable, are functions of
    Python's that aren't pure.
    """

    objection: tuple | None
    cells: tuple
    globals: tuple
    impure_builtins: frozenset
    text: Text


@functools.lru_cache(maxsize=4096)
def reading_of(code, known=()):
    """known: names of arguments that are the same object at each call."""
    text = text_of(code)
    objection = text.objection
    roots = {*code.co_freevars, *known}
    asked = [*text.loose, *(each for (is_global, name), found in text.unseen.items() if not is_global and name not in roots for each in found)]
    if objection is None and asked:
        objection = f"asks for {asked[0][0]!r}", asked[0][1]
    is_set = next(((name, line) for (_, name), line in text.sets.items() if name in code.co_freevars), None)
    if objection is None and is_set is not None:
        objection = f"sets the variable {is_set[0]!r} of the function around it", is_set[1]
    variables = tuple(variable for variable in text.uses if variable[0])
    impure = frozenset(name for _, name in variables if not is_pure_builtin(name))
    return Reading(objection, tuple((False, name) for name in code.co_freevars), variables, impure, text)


@functools.lru_cache(maxsize=4096)
def text_of(code):
    """The Text of a function's code."""
    uses, loose, sets, objection = {}, [], {}, None
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "EXTENDED_ARG")]
    line, in_chain = code.co_firstlineno, set()
    for at, step in enumerate(steps):
        line = (step.positions and step.positions.lineno) or line
        where = f"{code.co_filename}:{line} ({code.co_name})"
        if step.opname in _LOADS:
            chain, taken = _chain(steps, at + 1)
            in_chain.update(taken)
            uses.setdefault((step.opname in _OF_GLOBALS, step.argval), []).append((chain, where))
        elif step.opname in _ATTRIBUTES:
            if at not in in_chain and not is_seen(step.argval):
                loose.append((step.argval, where))
        elif step.opname in _OBJECTIONS or _compares_identities(steps, at):
            found = "compares identities with 'is'" if step.opname == "IS_OP" else _OBJECTIONS[step.opname].format(step.argval)
            objection = objection or (found, where)
        elif ("FAST" in step.opname or "DEREF" in step.opname) and step.opname not in _OF_CELLS:
            for name in step.argval if isinstance(step.argval, tuple) else (step.argval,):
                uses.setdefault((False, name), []).append(((), where))
                sets.setdefault((False, name), where)
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            within = text_of(each)
            for variable, chains in within.uses.items():
                uses.setdefault(variable, []).extend(chains)
            loose += within.loose
            # A function's own variables are none of the one around it.
            sets = {variable: place for variable, place in within.sets.items() if variable[1] in each.co_freevars} | sets
            objection = objection or within.objection
    uses = {variable: tuple(dict.fromkeys(chains)) for variable, chains in uses.items()}
    unseen = {
        variable: tuple((name, place) for chain, place in chains for name in chain if isinstance(name, str) and not is_seen(name))
        for variable, chains in uses.items()
    }
    return Text(uses, {variable: names for variable, names in unseen.items() if names}, tuple(loose), sets, objection)


def _chain(steps, at):
    """(chain, numbers of its steps) of what is asked of a variable that was loaded before this step."""
    chain, first = [], at
    while at < len(steps):
        if steps[at].opname in _ATTRIBUTES:
            chain.append(steps[at].argval)
            at += 1
        elif [step.opname for step in steps[at : at + 2]] == ["LOAD_CONST", "BINARY_SUBSCR"] and type(steps[at].argval) in (str, int):
            chain.append(Item(steps[at].argval))
            at += 2
        else:
            break
    return tuple(chain), range(first, at)


def _compares_identities(steps, at):
    """Whether a step asks by `is` for another object than one of those that there is one of."""
    if steps[at].opname != "IS_OP":
        return False
    before = steps[at - 1]
    return not (before.opname == "LOAD_CONST" and any(before.argval is each for each in _SINGLETONS))
