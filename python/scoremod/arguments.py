"""Callers' arguments, as the C interface takes them: each is checked here, or ctypes would convert or cut it silently."""

import json
from collections.abc import Mapping

import numpy as np

from scoremod.errors import InvalidArgumentError


def problem_text(problem):
    """The JSON text of a problem that is a dict, or a text already."""
    if isinstance(problem, str):
        return problem
    try:
        # NumPy's numbers come in when sizes are taken from arrays.
        return json.dumps(problem, allow_nan=False, default=lambda value: value.item())
    except (TypeError, ValueError, AttributeError) as error:
        raise InvalidArgumentError(f"problem: expected JSON text, or a dict that JSON can hold; found: {error}") from None


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


def mapping(value, name, what):
    """The value, which must be a dict or the like of names and `what`."""
    if not isinstance(value, Mapping):
        raise InvalidArgumentError(f"{name}: expected a dict of name: {what}, found {type(value).__name__}")
    return value
