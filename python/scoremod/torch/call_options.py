"""The Call of flex_attention's arguments, but for its program."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from scoremod.arguments import backend_names, check_new_sizes, dropout_rate, finite_scale, int32
from scoremod.attention import Offsets
from scoremod.errors import InvalidArgumentError, WrongTypeError
from scoremod.signatures import Backends, NewSizes
from scoremod.torch.call import MIXED, PAGED, Call

# The offsets of a call that says nothing of a larger problem, by identity.
NO_OFFSETS = Offsets()


class CallSpec(NamedTuple):
    """The options of a call as they are given, not looked at yet. options_of() makes its Call of them, but for the program.

    q_start: whether the offsets are a q_start alone. The fields from `place` on are those of Call.
    """

    scale: float | None = None
    backends: Backends = None
    deterministic: bool | None = None
    offsets: Offsets = NO_OFFSETS
    new_sizes: NewSizes = None
    q_start: bool = False
    dropout_p: float = 0.0
    with_max: bool = False
    place: str | None = None
    longest: tuple[int | None, int | None] = (None, None)
    sink: bool = False
    dtype_o: str | None = None
    amax_o: bool = False
    factors: int = 0
    dtype_kv: str | None = None

    def in_graph(self) -> tuple[Any, ...]:
        """The values in one row, as Dynamo takes an argument of an operator."""
        return *self._replace(offsets=NO_OFFSETS, longest=(None, None)), *Offsets(*self.offsets), *self.longest

    @classmethod
    def of_graph(cls, values: Sequence[Any]) -> CallSpec:
        """The spec of what in_graph() gave."""
        *fields, batch, head, query, key, most_q, most_kv = values
        made, offsets = cls(*fields), Offsets(batch, head, query, key)
        return made._replace(offsets=offsets if made.q_start or any(offsets) else NO_OFFSETS, longest=(most_q, most_kv))


def options_of(spec: CallSpec) -> Call:
    """The Call of everything but the program. Raises InvalidArgumentError for options that make no sense."""
    scale, backends, deterministic, offsets, new_sizes = spec.scale, spec.backends, spec.deterministic, spec.offsets, spec.new_sizes
    q_start, dropout_p, place = spec.q_start, spec.dropout_p, spec.place
    is_laid_out = place is None and not spec.sink and not spec.factors
    as_usual = (offsets is NO_OFFSETS or (q_start and type(offsets.query) is int)) and not dropout_p and not spec.with_max and is_laid_out
    if as_usual and scale is None and backends is None and deterministic is None and new_sizes is None:
        usual = _DEFAULTS[torch.are_deterministic_algorithms_enabled()]
        return usual._replace(offsets=offsets, q_start=True) if q_start else usual
    scale, dropout_p = _as_number(scale), _as_number(dropout_p)
    if scale is not None:
        if not isinstance(scale, numbers.Real):
            raise InvalidArgumentError(f"scale: expected a number, found {scale!r:.100}; a learned factor goes into score_mod")
        scale = finite_scale(scale)
    check_new_sizes(new_sizes)
    check_offsets(offsets)
    given, offsets = (
        offsets,
        Offsets(*(int32(int(value) if isinstance(value, torch.SymInt) else value, f"offsets.{axis}") for axis, value in Offsets(*offsets)._asdict().items())),
    )
    if any(offset < 0 for offset in offsets):
        raise InvalidArgumentError(f"offsets: expected numbers that are not negative, found {offsets}")
    deterministic = torch.are_deterministic_algorithms_enabled() if deterministic is None else bool(deterministic)
    return Call(
        None,
        scale,
        tuple(backend_names(backends)),
        deterministic,
        NO_OFFSETS if given is NO_OFFSETS else offsets,
        dropout_rate(dropout_p, "dropout_p"),
        bool(spec.with_max),
        place=place,
        longest=tuple(spec.longest),
        lengths=place in (PAGED, MIXED),
        sink=spec.sink,
        dtype_o=spec.dtype_o,
        amax_o=spec.amax_o,
        factors=spec.factors,
        new_sizes=new_sizes,
        q_start=q_start,
        dtype_kv=spec.dtype_kv,
    )


def check_offsets(offsets):
    """Raises InvalidArgumentError unless these can be index offsets."""
    if not isinstance(offsets, (tuple, list)) or len(offsets) > len(Offsets()):
        raise InvalidArgumentError(f"offsets: expected scoremod.Offsets(batch, head, query, key), found {offsets!r:.100}")


def check_flags(**flags):
    """Raises WrongTypeError where a tensor is given for True or False, or for a number: its truth would wait for a device, or not be known."""
    for name, value in flags.items():
        if isinstance(value, torch.Tensor):
            expected = "a number" if name == "dropout_p" else "True or False"
            raise WrongTypeError(f"{name}: expected {expected}, found a tensor of shape {tuple(value.shape)}; give a Python value")


def _as_number(given):
    """The number of a SymFloat or SymInt, for which torch.compile then makes a graph of its own. It has one for a head dim that it leaves open."""
    return float(given) if isinstance(given, (torch.SymFloat, torch.SymInt)) else given


# Calls with the defaults, which most calls have.
_DEFAULTS = tuple(Call(None, None, (), deterministic, NO_OFFSETS) for deterministic in (False, True))
