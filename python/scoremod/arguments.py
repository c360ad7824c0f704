"""Callers' arguments, as the C interface takes them: each is checked here, or ctypes would convert or cut it silently."""

import ctypes
import functools
import json
import math
import numbers
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from scoremod import library
from scoremod.errors import InvalidArgumentError, WrongTypeError


def problem_text(problem):
    """The JSON text of a problem that is a dict, or a text already."""
    if isinstance(problem, str):
        return problem
    try:
        # NumPy's numbers come in when sizes are taken from arrays.
        return json.dumps(problem, allow_nan=False, default=lambda value: value.item())
    except (TypeError, ValueError, AttributeError) as error:
        raise InvalidArgumentError(f"problem: expected JSON text, or a dict that JSON can hold; found: {error}") from None


_LARGEST = float(np.finfo(np.float32).max)
_MOST_DROPPED = float(np.nextafter(np.float32(1), np.float32(0)))
LEVELS = ("verified", "static")
NEW_SIZES = (None, "wait", "serve")


def compile_options(backend, threads, disabled_passes, device, *, backends=None, memory=None, max_workspace=None, autotune=False, new_sizes=None):
    """The options of what is compiled."""
    chosen, usual = backend_names(backends), (backend, threads, device, memory, max_workspace, new_sizes)
    if not disabled_passes and not chosen and not autotune and all(type(each) in _HASHED for each in usual):
        return _usual_options(*usual)
    return _options(*usual, disabled_passes, chosen, autotune)


def query_options(backend, disabled_passes, device, *, backends, memory, level="verified", device_properties=None):
    """The options of a question about a problem. device_properties: the text of a device elsewhere."""
    if level not in LEVELS:
        raise InvalidArgumentError(f"level: expected {' or '.join(map(repr, LEVELS))}, found {level!r}")
    if device_properties is not None and device is not None:
        raise InvalidArgumentError(f"device: expected None beside device_properties, which say of what device the answers are; found {device!r}")
    options = _options(backend, 0, device, memory, None, None, disabled_passes, backend_names(backends), False)
    options.support_level = LEVELS.index(level)
    options.device_properties = None if device_properties is None else encode(device_properties, "device_properties")
    return options


# Such values are equal only where the options are.
_HASHED = (str, int, type(None))


@functools.lru_cache(maxsize=256)
def _usual_options(backend, threads, device, memory, max_workspace, new_sizes):
    """The options that PyTorch passes for each new size; nobody writes into them."""
    return _options(backend, threads, device, memory, max_workspace, new_sizes, (), (), False)


def _options(backend, threads, device, memory, max_workspace, new_sizes, disabled_passes, chosen, autotune):
    passes = [encode(name, "disabled_passes") for name in disabled_passes]
    chosen = [encode(name, "backends") for name in chosen]
    check_new_sizes(new_sizes)
    if max_workspace is not None and not (isinstance(max_workspace, (int, np.integer)) and 0 < max_workspace < 2**63):
        raise InvalidArgumentError(f"max_workspace: expected a positive number of bytes, found {max_workspace!r}")
    return library.CompileOptions(
        backend=None if backend is None else encode(backend, "backend"),
        disabled_passes=(ctypes.c_char_p * len(passes))(*passes),
        disabled_pass_count=len(passes),
        threads=int32(threads, "threads"),
        has_device=device is not None,
        device=0 if device is None else int32(device, "device"),
        memory=None if memory is None else encode(memory, "memory"),
        backends=(ctypes.c_char_p * len(chosen))(*chosen),
        backend_count=len(chosen),
        max_workspace=0 if max_workspace is None else int(max_workspace),
        autotune=bool(autotune),
        new_sizes=NEW_SIZES.index(new_sizes),
    )


def check_new_sizes(value):
    # A list or an array has no answer to `in`.
    if not (value is None or isinstance(value, str)) or value not in NEW_SIZES:
        raise InvalidArgumentError(f"new_sizes: expected 'wait' or 'serve', found {value!r:.100}")


def refuse_arrays(expected: str, **values: Any) -> None:
    """Raises WrongTypeError where an argument that is a Python value is an array instead. An array of one number is taken for it."""
    for name, value in values.items():
        if hasattr(value, "shape") and (expected == "a text" or math.prod(value.shape) != 1):
            raise WrongTypeError(f"{name}: expected {expected}, found an array of shape {tuple(value.shape)}; give a Python value")


def backend_names(backends: Any) -> list[str]:
    """The names of a list of backends, or of a text with commas between them; those to leave out have a "-" before them."""
    if backends is None:
        return []
    if isinstance(backends, str):
        return [name.strip() for name in backends.split(",") if name.strip()]
    # An array of one number is iterable by its type alone.
    names: list[Any] = list(backends) if isinstance(backends, Iterable) and not hasattr(backends, "shape") else [backends]
    if not all(isinstance(name, str) for name in names):
        raise InvalidArgumentError(f"backends: expected names, or a text with commas between them, found {backends!r:.100}")
    return names


def encode(text, name):
    if not isinstance(text, str) or "\0" in text:
        raise InvalidArgumentError(f"{name}: expected a text without NUL characters, found {text!r}")
    return text.encode("utf-8", "surrogatepass")


def int32(value, name):
    # ctypes would keep the low 32 bits of anything larger.
    if not isinstance(value, (int, np.integer)) or not -(2**31) <= value < 2**31:
        raise InvalidArgumentError(f"{name}: expected a 32-bit integer, found {value!r}")
    return int(value)


def uint64(value, name):
    if not isinstance(value, (int, np.integer)) or not 0 <= value < 2**64:
        raise InvalidArgumentError(f"{name}: expected an integer from 0 to 2**64 - 1, found {value!r}")
    return int(value)


def check_names(what, given, known):
    for name in given:
        if name not in known:
            names = ", ".join(known) or "none"
            raise InvalidArgumentError(f"{what}: expected names among those the program has ({names}), found {name!r}")


def finite(value, name):
    """The number as a float. One beyond float32 is left to the library, which knows its range."""
    try:
        number = float(value) if isinstance(value, numbers.Real) else math.nan
    except OverflowError:  # an integer beyond every float
        number = math.inf
    if not math.isfinite(number):
        raise InvalidArgumentError(f"{name}: expected a finite number, found {value!r}")
    return number


def finite_scale(value):
    """The factor of Q K^T as a float that float32 holds."""
    number = finite(value, "scale")
    if abs(number) > _LARGEST:
        raise InvalidArgumentError(f"scale: expected a number that float32 holds, found {value!r}")
    return number


def dropout_rate(value, name):
    """The part of the weights that is dropped, as a float."""
    # An integer beyond every float would raise in float().
    number = float(value) if isinstance(value, numbers.Real) and 0 <= value < 1 else math.nan  # pyright: ignore[reportOperatorIssue]
    if not np.float32(number) < 1:
        raise InvalidArgumentError(f"{name}: expected a number from 0 to below 1, in float32 at most {_MOST_DROPPED!r}, found {value!r:.100}")
    return number


def mapping(value, name, what):
    """The value, which must be a dict or the like of names and `what`."""
    if not isinstance(value, Mapping):
        raise InvalidArgumentError(f"{name}: expected a dict of name: {what}, found {type(value).__name__}")
    return value
