"""Checks of the arguments that fused_attention takes for its callbacks, of whichever framework their tensors are."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from scoremod.errors import InvalidArgumentError, WrongTypeError


class AtLeast(int):
    """A length that a callback's tensor may exceed: that of the longest of several sequences."""


class Callbacks(NamedTuple):
    """fused_attention's arguments beside score_mod, by their names."""

    score_mod_bprop: Any = None
    score_mod_tensors: Any = None
    score_mod_bprop_tensors: Any = None
    trust_bprop: bool = False

    def are_given(self) -> bool:
        """Whether score_mod is a callback that builds on a graph, which any of them makes it."""
        return bool(self.trust_bprop) or any(each is not None for each in self._replace(trust_bprop=None))


def check_callbacks(score_mod: Any, score_mod_bprop: Any, tensors: Any, bprop_tensors: Any, trust_bprop: bool) -> None:
    """Raises what callbacks and tensors that don't go together are refused with."""
    others = {"score_mod_bprop": score_mod_bprop, "score_mod_tensors": tensors, "score_mod_bprop_tensors": bprop_tensors}
    given = [name for name, value in others.items() if value is not None]
    if score_mod is None and given:
        raise InvalidArgumentError(f"{', '.join(given)} require score_mod; give it, or leave them out")
    if bprop_tensors and score_mod_bprop is None:
        raise InvalidArgumentError("score_mod_bprop_tensors require score_mod_bprop; give it, or leave them out")
    if trust_bprop and score_mod_bprop is None:
        raise InvalidArgumentError("trust_bprop requires score_mod_bprop; give it, or leave trust_bprop out")
    for name, function in (("score_mod", score_mod), ("score_mod_bprop", score_mod_bprop)):
        if function is not None and not callable(function):
            raise WrongTypeError(f"{name}: expected a function, found {function!r}")


def check_names(what: str, given: Any) -> None:
    """Raises WrongTypeError for what is no mapping from names. what: the argument."""
    if given is not None and not isinstance(given, Mapping):
        raise WrongTypeError(f"{what}: expected a mapping from names to arrays, found {given!r}")
    for name in given or {}:
        if not isinstance(name, str):
            raise WrongTypeError(f"{what}: expected names, found {name!r}")


def shape_of_scores(what: str, found: tuple, sizes: tuple) -> tuple:
    """The shape of rank 4 or 0 in which a callback's tensor broadcasts to scores of these sizes."""
    if not found:
        return ()
    shape = (1,) * (4 - len(found)) + found
    if len(shape) != 4 or not all(map(_fits, shape, sizes)):
        raise InvalidArgumentError(f"{what}: expected a shape that broadcasts to {sizes}, found {found}")
    return shape


def _fits(n, size):
    return n == 1 or (n >= size if isinstance(size, AtLeast) else n == size)


def refuse_positions(has_callbacks: bool) -> None:
    """Raises InvalidArgumentError for callbacks of a call whose queries begin at a q_start: their tensors have a row for each query of the call."""
    if has_callbacks:
        raise InvalidArgumentError(
            "q_start: expected none beside a callback that builds on a graph, whose tensors have a row for each query, found one; give a mask_mod of q_idx plus it"
        )
