"""The options of one attention call beside its tensors and functions, and their checks: PyTorch, JAX and NumPy have the same ones, with the same messages."""

from __future__ import annotations

import math
import numbers
from typing import Any, NamedTuple

import numpy as np

from scoremod.errors import InvalidArgumentError, WrongTypeError
from scoremod.signatures import Backends, NewSizes

NEW_SIZES = (None, "wait", "serve")
_LARGEST = float(np.finfo(np.float32).max)
_MOST_DROPPED = float(np.nextafter(np.float32(1), np.float32(0)))


class Offsets(NamedTuple):
    """Added to the local indices, so that a shard of a larger problem sees true positions."""

    batch: int = 0
    head: int = 0
    query: int = 0
    key: int = 0


# The offsets of a call that says nothing of a larger problem, by identity.
NO_OFFSETS = Offsets()


class CallSpec(NamedTuple):
    """The options of one call. A front end puts in what its caller gave, and checked() makes plain values of them.

    A front end leaves an option out that its calls lack, such as offsets in JAX. What a problem says itself, as NumPy's dropout, is not here either.
    """

    scale: float | None = None
    backends: Backends = None  # checked() makes a tuple of them
    deterministic: bool | None = None
    offsets: Offsets = NO_OFFSETS
    new_sizes: NewSizes = None
    q_start: bool = False  # whether the offsets are a q_start alone
    dropout: float = 0.0
    with_max: bool = False  # whether each row's largest score is asked for
    place: str | None = None  # where sequences lie, by PyTorch's names (scoremod.torch.call)
    longest: tuple[int | None, int | None] = (None, None)  # the most queries and keys of a ragged sequence; None for all tokens
    sink: bool = False  # whether each head has a learned sink
    dtype_o: str | None = None  # of the output, where it isn't query's
    amax_o: bool = False  # whether the largest magnitude in the output is asked for
    factors: int = 0  # the number of factors that a call with FP8 tensors has
    gradient_factors: int = 0  # how many more its gradients have (scoremod.jax.float8)
    dtype_kv: str | None = None  # of an FP8 KV cache under a query of more bits
    block_scales: str = ""  # the factors that are block scales (scoremod.jax.float8.block_letters)

    def in_graph(self) -> dict[str, Any]:
        """The options by name, each of one value, as Dynamo takes arguments of an operator."""
        offsets, (queries, keys) = Offsets(*self.offsets), self.longest
        options = {name: value for name, value in zip(CallSpec._fields, self) if name not in ("offsets", "longest")}
        options |= {"batch_offset": offsets.batch, "head_offset": offsets.head, "query_offset": offsets.query, "key_offset": offsets.key}
        return {**options, "longest_q": queries, "longest_kv": keys}

    @classmethod
    def of_graph(cls, *, longest_q: Any, longest_kv: Any, **options: Any) -> CallSpec:
        """The spec of what in_graph() gave."""
        offsets = Offsets(*[options.pop(f"{axis}_offset") for axis in Offsets._fields])
        made = cls(**options, longest=(longest_q, longest_kv))
        return made._replace(offsets=offsets) if made.q_start or any(offsets) else made


def checked(spec: CallSpec, *, dropout: str = "dropout_rate") -> CallSpec:
    """Checks each option, and returns all as Python's own values. dropout: the caller's name of the rate.

    Raises InvalidArgumentError for a wrong value, and WrongTypeError for one of a wrong type.
    """
    check_flags(deterministic=spec.deterministic)
    return spec._replace(
        scale=None if spec.scale is None else checked_scale(spec.scale),
        backends=backend_names(spec.backends),
        deterministic=bool(spec.deterministic),
        offsets=checked_offsets(spec.offsets),
        new_sizes=checked_new_sizes(spec.new_sizes),
        dropout=checked_rate(spec.dropout, dropout),
        with_max=bool(spec.with_max),
        amax_o=bool(spec.amax_o),
    )


def wrong(name: str, expected: str, value: Any, remedy: str = "", *, is_type: bool = False) -> InvalidArgumentError:
    """The error for an option's value. is_type: whether its type is what is wrong."""
    kind = WrongTypeError if is_type else InvalidArgumentError
    return kind(f"{name}: expected {expected}, found {_shown(value)}{'; ' if remedy else ''}{remedy}")


def _shown(value):
    # An array's numbers may be on a device, or not be known.
    if hasattr(value, "shape") and hasattr(value, "dtype") and not isinstance(value, np.generic):
        return f"{type(value).__name__} of shape {tuple(value.shape)} and dtype {value.dtype}"
    return f"{value!r:.100}"


def checked_scale(value: Any) -> float:
    """The factor of Q K^T as a float that float32 holds."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    try:
        number = float(value) if is_number else math.nan  # pyright: ignore[reportArgumentType]
    except OverflowError:  # of an integer beyond every float
        number = math.inf
    if not abs(number) <= _LARGEST:
        raise wrong_scale(value, is_type=not is_number)
    return number


def wrong_scale(value: Any, *, is_type: bool = True) -> InvalidArgumentError:
    """The error for a scale. is_type: whether it is no number."""
    remedy = "leave it out for 1 / sqrt(head dim)" if isinstance(value, np.generic) or not hasattr(value, "shape") else "score_mod takes factors in an array"
    return wrong("scale", "a finite number that float32 holds", value, remedy, is_type=is_type)


def backend_names(backends: Any) -> tuple[str, ...]:
    """The names of a list of backends, or of a text with commas between them; those to leave out have a "-" before them."""
    if backends is None:
        return ()
    if isinstance(backends, str):
        return tuple([name.strip() for name in backends.split(",") if name.strip()])
    # An array of one number is iterable by its type alone.
    names: tuple[Any, ...] = tuple(backends) if hasattr(backends, "__iter__") and not hasattr(backends, "shape") else (backends,)
    if not all(isinstance(name, str) for name in names):
        raise wrong("backends", "names, or a text with commas between them", backends, "leave it out to have one chosen", is_type=True)
    return names


def check_backend(backend: Any, backends: Any) -> None:
    """Raises unless `backend` is one name or None, and no names are given beside it."""
    if backend is None:
        return
    if not isinstance(backend, str) or not backend:
        raise wrong("backend", "a name", backend, "several go into backends=", is_type=not isinstance(backend, str))
    if backend_names(backends):
        raise InvalidArgumentError(f"expected 'backend' or 'backends', found both, {backend!r:.100} and {backends!r:.100}; leave one of them out")


def checked_new_sizes(value: Any) -> NewSizes:
    """The value itself, where new_sizes may have it."""
    # A list or an array has no answer to `in`.
    is_text = value is None or isinstance(value, str)
    if not is_text or value not in NEW_SIZES:
        raise wrong("new_sizes", "'wait' or 'serve'", value, "leave it out to have one of them chosen", is_type=not is_text)
    return value


def checked_rate(value: Any, name: str) -> float:
    """The part of the weights that is dropped, as a float."""
    is_number = isinstance(value, numbers.Real)
    # An integer beyond every float would raise in float().
    number = float(value) if is_number and 0 <= value < 1 else math.nan  # pyright: ignore[reportOperatorIssue]
    if not np.float32(number) < 1:
        raise wrong_rate(value, name, is_type=not is_number)
    return number


def wrong_rate(value: Any, name: str, *, is_type: bool) -> InvalidArgumentError:
    """The error for a dropout rate. is_type: whether it is no number."""
    return wrong(name, f"a number from 0 to below 1, in float32 at most {_MOST_DROPPED!r}", value, "0 drops nothing", is_type=is_type)


def check_offsets(offsets: Any) -> None:
    """Raises unless these can be index offsets."""
    is_tuple = isinstance(offsets, (tuple, list))
    if not is_tuple or len(offsets) > len(NO_OFFSETS):
        raise wrong("offsets", "scoremod.Offsets(batch, head, query, key)", offsets, "give scoremod.Offsets() for none", is_type=not is_tuple)


def checked_offsets(offsets: Any) -> Offsets:
    """The Offsets of a tuple or list; NO_OFFSETS is itself."""
    if offsets is NO_OFFSETS:
        return NO_OFFSETS
    check_offsets(offsets)
    made = Offsets(*offsets)
    if all([type(value) is int and 0 <= value < 2**31 for value in made]):  # noqa: C419 (faster)
        return made
    for axis, value in made._asdict().items():
        if not _is_int32(value):
            expected, remedy = "a 32-bit integer from 0 on", f"it is the index of the tensors' first {axis}"
            raise wrong(f"offsets.{axis}", expected, value, remedy, is_type=not isinstance(value, (int, np.integer)))
    return Offsets(*map(int, made))


def checked_start(value: Any, batch: Any) -> int:
    """A q_start that is one number. batch: how many an array of them would have."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not _is_int32(value):
        raise wrong_start(value, batch)
    return int(value)


def wrong_start(value: Any, batch: Any) -> InvalidArgumentError:
    """The error for a q_start that is no index, and none for each batch."""
    is_type = isinstance(value, bool) or not isinstance(value, numbers.Integral)
    expected = f'a 32-bit integer from 0 on, integers of shape ({batch},), one for each batch, or "bottom_right"'
    return wrong("q_start", expected, value, "it is the index of the first query in its sequence", is_type=is_type)


def checked_longest(max_length: Any) -> tuple[int | None, int | None]:
    """The most tokens of a sequence of queries and of one of keys, of one number or a pair; None where it isn't given."""
    if max_length is None:
        return None, None
    pair = max_length if isinstance(max_length, (tuple, list)) else (max_length, max_length)
    if len(pair) != 2:
        raise wrong("max_length", "a number, or a pair for queries and keys", max_length, "leave it out for all tokens")
    queries, keys = pair
    return _checked_most(queries), _checked_most(keys)


def _checked_most(value):
    if value is None:
        return None
    if not _is_int32(value) or value < 1:
        is_type = not isinstance(value, (int, np.integer))
        raise wrong("max_length", "a 32-bit integer of at least 1", value, "it is the most tokens that a sequence has", is_type=is_type)
    return int(value)


def check_flags(**flags: Any) -> None:
    """Raises WrongTypeError for a text, or an array of several numbers, in place of True or False. None, and an array of one, are taken for them."""
    for name, value in flags.items():
        if value is not True and value is not False and value is not None:
            check_flag(name, value)


def check_flag(name: str, value: Any) -> None:
    """check_flags() of one that is not True, False or None."""
    if isinstance(value, str) or math.prod(getattr(value, "shape", ())) != 1:
        raise wrong_flag(name, value)


def wrong_flag(name: str, value: Any) -> InvalidArgumentError:
    """The error for what has no truth, or none that is known here."""
    return wrong(name, "True or False", value, "give a bool of Python", is_type=True)


def _is_int32(value):
    """Whether it is an integer from 0 on that ctypes would keep."""
    return isinstance(value, (int, np.integer)) and 0 <= value < 2**31
