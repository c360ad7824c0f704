"""The Call of flex_attention's options, but for its program."""

from __future__ import annotations

import numpy as np
import torch

from scoremod.call_spec import NO_OFFSETS, CallSpec, check_flag, checked, wrong_flag, wrong_rate
from scoremod.torch.call import MIXED, PAGED, Call


def options_of(spec: CallSpec) -> Call:
    """The Call of everything but the program. Raises InvalidArgumentError for options that make no sense."""
    scale, backends, deterministic, offsets, new_sizes = spec.scale, spec.backends, spec.deterministic, spec.offsets, spec.new_sizes
    q_start, place = spec.q_start, spec.place
    is_laid_out = place is None and not spec.sink and not spec.factors
    as_usual = (offsets is NO_OFFSETS or (q_start and type(offsets.query) is int)) and spec.dropout == 0 and not spec.with_max and is_laid_out
    if as_usual and scale is None and backends is None and deterministic is None and new_sizes is None:
        usual = _DEFAULTS[torch.are_deterministic_algorithms_enabled()]
        return usual._replace(offsets=offsets, q_start=True) if q_start else usual
    plain = checked(_without_open_numbers(spec), dropout="dropout_p")
    return Call(
        program=None,
        scale=plain.scale,
        backends=tuple(plain.backends or ()),
        deterministic=bool(plain.deterministic),
        offsets=plain.offsets,
        dropout=plain.dropout,
        max_scores=plain.with_max,
        place=place,
        longest=tuple(plain.longest),
        lengths=place in (PAGED, MIXED),
        sink=plain.sink,
        dtype_o=plain.dtype_o,
        amax_o=plain.amax_o,
        factors=plain.factors,
        new_sizes=plain.new_sizes,
        q_start=q_start,
        dtype_kv=plain.dtype_kv,
    )


def _without_open_numbers(spec):
    """The spec with numbers in place of what torch.compile leaves open, and PyTorch's own answer to whether gradients are deterministic."""
    deterministic, offsets = spec.deterministic, spec.offsets
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    if isinstance(offsets, (tuple, list)) and any([isinstance(each, torch.SymInt) for each in offsets]):  # noqa: C419 (faster)
        offsets = tuple(map(_as_number, offsets))
    return spec._replace(scale=_as_number(spec.scale), dropout=_as_number(spec.dropout), deterministic=deterministic, offsets=offsets)


def _as_number(given):
    """The number of a SymFloat or SymInt, for which torch.compile then makes a graph of its own. It has one for a head dim that it leaves open."""
    if isinstance(given, torch.SymInt):
        return int(given)
    return float(given) if isinstance(given, torch.SymFloat) else given


def check_flags(**flags):
    """Raises WrongTypeError for what is neither True nor False. A tensor's truth would wait for a device, or not be known."""
    for name, value in flags.items():
        if value is not False and value is not None and value is not True:
            if isinstance(value, torch.Tensor):
                raise wrong_flag(name, value)
            check_flag(name, value)


def check_rate(dropout_p):
    """Raises WrongTypeError where a tensor or an array is given for the dropout rate, before its truth is asked for."""
    if isinstance(dropout_p, (torch.Tensor, np.ndarray)):
        raise wrong_rate(dropout_p, "dropout_p", is_type=True)


# Calls with the defaults, which most calls have.
_DEFAULTS = tuple(Call(None, deterministic=deterministic, offsets=NO_OFFSETS) for deterministic in (False, True))
