"""Wrong options of attention calls, and what all front ends answer, and right ones: tests/python, tests/jax and tests/torch give the same ones to each of them."""

from typing import Any, NamedTuple

import numpy as np
import pytest

from scoremod.call_spec import CallSpec, Offsets
from scoremod.errors import InvalidArgumentError, WrongTypeError

# Right ones, each another value than its default.
EACH_FIELD = CallSpec(
    scale=0.3,
    backends=("gemm",),
    deterministic=True,
    offsets=Offsets(1, 2, 3, 4),
    new_sizes="serve",
    dropout=0.1,
    with_max=True,
    place="ragged",
    longest=(5, None),
    sink=True,
    dtype_o="e4m3",
    amax_o=True,
    factors=4,
    gradient_factors=3,
    dtype_kv="e5m2",
    block_scales="descale_k=BHS?",
)


class Mistake(NamedTuple):
    """An option's wrong value, and the error of every front end that has the option, to the letter. {name}: how the front end calls it."""

    option: str
    value: Any
    error: type[Exception]
    message: str

    def arguments(self, names):
        """The argument of a front end. names: option -> the front end's own name, where it has another."""
        return {names.get(self.option, self.option): self.value}

    def check(self, error, names):
        """Holds an error that a front end raised to the class and the message."""
        expected = self.message.replace("{name}", names.get(self.option, self.option))
        assert type(error) is self.error and str(error) == expected, f"expected {self.error.__name__}: {expected}\nfound {type(error).__name__}: {error}"

    def is_raised_by(self, call, names):
        """Holds a call with the argument to the error."""
        with pytest.raises(self.error) as caught:
            call(**self.arguments(names))
        self.check(caught.value, names)

    def __str__(self):
        return f"{self.option}={self.value!r:.30}"


PAIR = np.ones(2)
NAN = float("nan")
_FOUND_PAIR = "found ndarray of shape (2,) and dtype float64"


def _scale(value, found, error=WrongTypeError, remedy="leave it out for 1 / sqrt(head dim)"):
    return Mistake("scale", value, error, f"{{name}}: expected a finite number that float32 holds, {found}; {remedy}")


def _backends(value, found):
    return Mistake("backends", value, WrongTypeError, f"{{name}}: expected names, or a text with commas between them, {found}; leave it out to have one chosen")


def _backend(value, found, error=WrongTypeError):
    return Mistake("backend", value, error, f"{{name}}: expected a name, {found}; several go into backends=")


def _unknown(option, value, found):
    known = "expected the name of a backend (cudnn, kernels, cpu, reference)"
    return Mistake(option, value, InvalidArgumentError, f"{known}, found {found}; leave it out to have one chosen")


def _new_sizes(value, found, error=WrongTypeError):
    return Mistake("new_sizes", value, error, f"{{name}}: expected 'wait' or 'serve', {found}; leave it out to have one of them chosen")


def _flag(option, value, found):
    return Mistake(option, value, WrongTypeError, f"{{name}}: expected True or False, {found}; give a bool of Python")


def _dropout(value, found, error=InvalidArgumentError):
    expected = "a number from 0 to below 1, in float32 at most 0.9999999403953552"
    return Mistake("dropout", value, error, f"{{name}}: expected {expected}, {found}; 0 drops nothing")


def _offsets(value, found, error=WrongTypeError):
    return Mistake("offsets", value, error, f"{{name}}: expected scoremod.Offsets(batch, head, query, key), {found}; give scoremod.Offsets() for none")


def _offset(axis, value, found, error=InvalidArgumentError):
    return Mistake("offsets", value, error, f"{{name}}.{axis}: expected a 32-bit integer from 0 on, {found}; it is the index of the tensors' first {axis}")


def _start(value, found, error=WrongTypeError):
    expected = 'a 32-bit integer from 0 on, integers of shape (2,), one for each batch, or "bottom_right"'
    return Mistake("q_start", value, error, f"{{name}}: expected {expected}, {found}; it is the index of the first query in its sequence")


def _longest(value, found, error=InvalidArgumentError):
    return Mistake("max_length", value, error, f"{{name}}: expected a 32-bit integer of at least 1, {found}; it is the most tokens that a sequence has")


def _output(value, found):
    expected = "one of float32, float16, bfloat16, float8_e4m3fn, float8_e5m2"
    return Mistake("out_dtype", value, InvalidArgumentError, f"{{name}}: expected {expected}, {found}; leave it out for bfloat16")


def _factor(value, expected, found):
    return Mistake("descale_q", value, InvalidArgumentError, f"{{name}}: expected {expected}, {found}; it is the factor of an FP8 tensor")


# Calls of any kind refuse these.
MISTAKES = (
    _scale("large", "found 'large'"),
    _scale(True, "found True"),
    _scale([1.0], "found [1.0]"),
    _scale(1j, "found 1j"),
    _scale(PAIR, _FOUND_PAIR, remedy="score_mod takes factors in an array"),
    _scale(NAN, "found nan", InvalidArgumentError),
    _scale(-float("inf"), "found -inf", InvalidArgumentError),
    _scale(1e300, "found 1e+300", InvalidArgumentError),
    _scale(10**400, "found 1" + "0" * 99, InvalidArgumentError),
    _scale(np.float64(1e39), "found np.float64(1e+39)", InvalidArgumentError),
    _backends(7, "found 7"),
    _backends(1.5, "found 1.5"),
    _backends(True, "found True"),
    _backends(b"cpu", "found b'cpu'"),
    _backends(["cpu", 3], "found ['cpu', 3]"),
    _backends(PAIR, _FOUND_PAIR),
    _unknown("backends", "abacus", "'abacus'"),
    _unknown("backends", ["-abacus", "cpu"], "'abacus'"),
    _backend(7, "found 7"),
    _backend(["cpu"], "found ['cpu']"),
    _backend("", "found ''", InvalidArgumentError),
    _backend(PAIR, _FOUND_PAIR),
    _unknown("backend", "abacus", "'abacus'"),
    _new_sizes("now", "found 'now'", InvalidArgumentError),
    _new_sizes(3, "found 3"),
    _new_sizes(True, "found True"),
    _new_sizes(["wait"], "found ['wait']"),
    _new_sizes(PAIR, _FOUND_PAIR),
    _flag("deterministic", PAIR, _FOUND_PAIR),
    _flag("deterministic", "no", "found 'no'"),
    _flag("return_lse", PAIR, _FOUND_PAIR),
    _flag("return_lse", "yes", "found 'yes'"),
    _dropout(1, "found 1"),
    _dropout(-0.1, "found -0.1"),
    _dropout(NAN, "found nan"),
    _dropout(1 - 2**-40, "found 0.9999999999990905"),
    _dropout(10**400, "found 1" + "0" * 99),
    _dropout("a", "found 'a'", WrongTypeError),
    _dropout([], "found []", WrongTypeError),
    _dropout(None, "found None", WrongTypeError),
    _dropout(PAIR, _FOUND_PAIR, WrongTypeError),
    _offsets(3, "found 3"),
    _offsets(None, "found None"),
    _offsets("abc", "found 'abc'"),
    _offsets({"query": 1}, "found {'query': 1}"),
    _offsets((1, 2, 3, 4, 5), "found (1, 2, 3, 4, 5)", InvalidArgumentError),
    _offset("key", (0, 0, 0, 2**31), "found 2147483648"),
    _offset("batch", (-1,), "found -1"),
    _offset("head", [0, 0.5], "found 0.5", WrongTypeError),
    _start(1.5, "found 1.5"),
    _start(True, "found True"),
    _start(PAIR, _FOUND_PAIR),
    _start(-1, "found -1", InvalidArgumentError),
    _start(2**31, "found 2147483648", InvalidArgumentError),
    Mistake("q_start", "top", InvalidArgumentError, "q_start: expected integers or \"bottom_right\", found 'top'"),
)
# Calls with q_offsets refuse these.
MISTAKES_OF_SEQUENCES = (
    _longest(0, "found 0"),
    _longest(-1, "found -1"),
    _longest(2**31, "found 2147483648"),
    _longest((3, 0), "found 0"),
    _longest(1.5, "found 1.5", WrongTypeError),
    _longest("a", "found 'a'", WrongTypeError),
    Mistake(
        "max_length", (1, 2, 3), InvalidArgumentError, "{name}: expected a number, or a pair for queries and keys, found (1, 2, 3); leave it out for all tokens"
    ),
)
# Calls whose query, key and value are float8_e4m3fn refuse these.
MISTAKES_OF_FLOAT8 = (
    _output("junk", "found 'junk'"),
    _output(3, "found 3"),
    _factor(0, "a positive finite number", "found 0"),
    _factor(NAN, "a positive finite number", "found nan"),
    _factor("a", "a positive number or floats of one element", "found 'a'"),
    Mistake("scale_o", 2.0, InvalidArgumentError, "{name}: expected one with an FP8 out_dtype and none with another, found one with bfloat16"),
)


def mistakes(*options, of=MISTAKES):
    """The mistakes of some options, or of all without names."""
    return [each for each in of if not options or each.option in options]
