"""Checks and messages for the factors of FP8 tensors, and for FP8 KV caches under wider queries, which PyTorch's and JAX's front ends share."""

import numbers

import numpy as np

from scoremod.call_spec import wrong
from scoremod.errors import InvalidArgumentError, UnsupportedError
from scoremod.places import FACTORS

# The factors that a call has whose key and value alone are FP8.
OF_CACHE = FACTORS[1:3]
# The elements that share a scale in MXFP8 (OCP Microscaling Formats (MX) Specification 1.0, table 1), as src/problem/block_scales.hpp has them.
SCALE_BLOCK = 32
_FORMATS = "float8_e4m3fn or float8_e5m2"
_OUTPUTS = "float32, float16, bfloat16, float8_e4m3fn, float8_e5m2"


def check_factors_fit(dtype, given, allowed=()):
    """Raises InvalidArgumentError for an argument of FP8 tensors beside a query of more bits. dtype: the query's. given: name -> value, None for none;
    allowed: names."""
    for name, value in given.items():
        if value is not None and name not in allowed:
            raise InvalidArgumentError(f"{name}: expected none beside a query of {_plain(dtype)}, found one; it goes with query, key and value of {_FORMATS}")


def check_cache_factor(name, value):
    """Raises InvalidArgumentError where a cache's factor was left out: 1 in its place would give wrong numbers."""
    if value is None:
        raise InvalidArgumentError(f"{name}: expected the factor of an FP8 key and value under a wider query, found none; give 1.0 if there is none")


def is_number(name, value):
    """Whether a factor is a number of Python; raises InvalidArgumentError unless it is then positive and float32 holds it."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return False
    if not 0 < float(value) <= float(np.finfo(np.float32).max):
        raise wrong(name, "a positive finite number", value, "it is the factor of an FP8 tensor")
    return True


def wrong_factor(name, value, heads=None, blocks=None):
    """The error for a factor that is no number and no tensor of the right size. heads: of a cache, where each may have one. blocks: (layout, shape) of the
    FP8 tensor, where it may have block scales."""
    sizes = "one element" if heads is None else f"one element, or of one for each of {heads} KV heads"
    if blocks is not None:
        extents = (" or ".join(map(str, scale_extents(letter, size))) for letter, size in zip(*blocks))
        sizes += f", or of block scales [{', '.join(extents)}]"
    return wrong(name, f"a positive number or floats of {sizes}", value, "it is the factor of an FP8 tensor")


def scale_extents(letter, size):
    """The sizes that block scales may have along a dimension of an FP8 tensor: one for each element, for each block of 32, or for all. letter: the
    dimension's in a layout; heads and batches have no blocks (docs/reference/fp8.md)."""
    blocks = [] if letter in "BH" else [-(-size // SCALE_BLOCK)]
    return list(dict.fromkeys((size, *blocks, 1)))


def are_block_scales(scales, layout, shape):
    """Whether scales of one shape are block scales of an FP8 tensor of a layout and a shape. One element is a factor."""
    is_one = all(size == 1 for size in scales)
    return not is_one and len(scales) == len(shape) and all(one in scale_extents(letter, size) for one, letter, size in zip(scales, layout, shape))


def wrong_output(value):
    """The error for an out_dtype that no output has."""
    return wrong("out_dtype", f"one of {_OUTPUTS}", value, "leave it out for bfloat16")


def check_output_factor(scale_o, dtype, is_float8):
    """Raises InvalidArgumentError unless there is a scale_o for an FP8 output alone. dtype: the output's."""
    if is_float8 != (scale_o is not None):
        found = "none" if scale_o is None else "one"
        raise InvalidArgumentError(f"scale_o: expected one with an FP8 out_dtype and none with another, found {found} with {_plain(dtype)}")


def _plain(dtype):
    """A dtype's name without that of its framework."""
    return str(dtype).removeprefix("torch.")


def needless_page_factor(name, pages, new):
    """The error for a factor beside new keys or values that are stored as they are. pages, new: dtypes."""
    return InvalidArgumentError(f"{name}: expected none but for FP8 pages of which new numbers are wider, found one with pages of {pages} and {new}")


def wrong_dtypes(found, remedy):
    """The error for dtypes of query, key and value that don't go together. found: name -> dtype's name."""
    described = ", ".join(f"{name} {dtype}" for name, dtype in found.items())
    return InvalidArgumentError(
        f"expected query, key and value of one dtype, float32, float16, bfloat16, {_FORMATS}, or key and value of one FP8 dtype under a wider query; "
        f"found {described}; {remedy}"
    )


def cache_gradient(name, remedy):
    """The error for a gradient that was asked for of a call with an FP8 KV cache. name: what it is with respect to."""
    return UnsupportedError(f"{name}: expected no gradient in a call whose key and value are an FP8 cache, found one asked for. {remedy}")
