"""Sizes that jax.export leaves open: batches and lengths that an exported program's calls bring.

The problem of such a call has null in their place, and XLA's handler takes them from the buffers' dimensions (bindings/jax/open_problem.hpp)."""

import contextlib
import json
import numbers

import jax

from scoremod.errors import UnsupportedError

# These may be open: the other sizes decide which code runs.
_OPEN = ("batch", "seq_q", "seq_kv")
# Takes the place of an open size where a backend is asked whether it takes a problem.
_SOME_SIZE = 128


def is_open(*arrays):
    """Whether an array's shape has a symbolic dimension."""
    return any(known(size) is None for array in arrays for size in array.shape)


def known(size):
    """The number that a size is; None for a symbolic one."""
    return size if isinstance(size, numbers.Integral) else None


def check_open(sizes):
    """Raises UnsupportedError where others of these Sizes are symbolic than batches and lengths."""
    wrong = [f"{name} {size}" for name, size in sizes._asdict().items() if known(size) is None and name not in _OPEN]
    if wrong:
        raise UnsupportedError(
            f"jax.export: expected numbers for heads and head dims, which decide the code that runs, found {', '.join(wrong)}; only batch and lengths "
            'may be symbolic. Export one program for each, or use backend="xla"'
        )


def check_numbers(what, *arrays):
    """Raises UnsupportedError for arrays with symbolic sizes."""
    if is_open(*arrays):
        shapes = ", ".join(str(array.shape) for array in arrays)
        raise UnsupportedError(
            f"{what}: expected arrays whose sizes are numbers, found shapes {shapes}, where jax.export leaves some open. Export one program for each size, or "
            "call flex_attention of whole sequences with lengths="
        )


@contextlib.contextmanager
def comparable():
    """Raises UnsupportedError where what is inside depends on how symbolic sizes compare, and that isn't known."""
    try:
        yield
    except jax.errors.InconclusiveDimensionOperation as error:
        raise UnsupportedError(
            f"jax.export: expected symbolic sizes whose constraints decide what reads which element, found: {str(error).splitlines()[0].rstrip('.')}. Give "
            "jax.export.symbolic_shape such constraints, as in symbolic_shape('b, s', constraints=['s <= 4096']), or give sizes as numbers"
        ) from None


def with_some_sizes(problem):
    """A problem's JSON with numbers for its open sizes."""
    problem = json.loads(problem)
    filled = {name: _SOME_SIZE if value is None else value for name, value in problem.items()}
    for operand in filled["operands"]:  # pyright: ignore[reportGeneralTypeIssues]
        operand["shape"] = [_SOME_SIZE if size is None else size for size in operand["shape"]]
    return json.dumps(filled)
