"""The samples at which the derivative that a callback gives is compared with the derived one, and what is said where they differ."""

from typing import Any

import numpy as np

SAMPLES = 256
_TOLERANCE = 1e-3
# Scores so low have no weight, or stand for a mask. A constant so low stands for one from MASK_CONSTANT on: 1e4 is the usual one in float16.
MASK_LIKE = -(2.0**15)
MASK_CONSTANT = -(2.0**10)


def drawn(sizes: tuple) -> tuple:
    """(scores, gradients of the modified scores, indices along each axis), the same at each call. sizes: those of the scores."""
    random = np.random.default_rng(0)
    scores, upstream = (random.normal(0, scale, SAMPLES).astype(np.float32) for scale in (4, 1))
    return scores, upstream, tuple(random.integers(0, size, SAMPLES).astype(np.int32) for size in sizes)


def random_elements(name: str, is_float: bool) -> Any:
    """Elements of an array whose values aren't known, the same for each array of the name."""
    random = np.random.default_rng(list(name.encode()))
    return random.uniform(0.5, 2, SAMPLES) if is_float else random.integers(0, 2, SAMPLES)


def first_difference(derived: Any, given: Any) -> Any:
    """(sample, derived, given, how many differ) of the first sample where the derivatives differ; None if none does."""
    with np.errstate(invalid="ignore"):  # of inf - inf
        close = np.abs(derived - given) <= _TOLERANCE * np.maximum(1, np.abs(derived))
    wrong = np.flatnonzero(~(close | (derived == given) | (np.isnan(derived) & np.isnan(given))))
    return (int(wrong[0]), float(derived[wrong[0]]), float(given[wrong[0]]), wrong.size) if wrong.size else None


def text_of(found: tuple, scores: Any, upstream: Any) -> str:
    """The error of a first_difference()."""
    i, derived, given, count = found
    return (
        f"score_mod_bprop: expected the derivative of score_mod, {derived:.6g} at score {scores[i]:.6g} for d score {upstream[i]:.6g}, found "
        f"{given:.6g} ({count} of {SAMPLES} samples differ); leave it out to have it derived, or give trust_bprop=True where it is to differ"
    )
