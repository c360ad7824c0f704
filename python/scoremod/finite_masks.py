"""Finite numbers that stand for a mask, such as -1e9, where a backward pass starts from the rounded log-sum-exp."""

import math
import warnings

import numpy as np

# From here on a float32 log-sum-exp is off by more than 1 / 1024.
_MASK_LIKE = -(2.0**15)
# Larger arrays are not looked through for it.
_MAX_ELEMENTS = 2**16
# The backward of the CPU's backends compensates for the rounding.
_EXACT = "host"


def warn_of_finite_masks(program, sources, memory, stacklevel, infinity="jnp.inf"):
    """Warns where a program may give all scores of a row such a number. The row's log-sum-exp then rounds away the number of keys, and its
    gradients are wrong.

    memory: where it runs, "host" or "cuda"; None for backward passes that combine log-sum-exps of partial results.

    sources: for each operand of the program an object with known_array(): the whole captured array, or None where its numbers are unknown,
        as under tracing.
    infinity: how the caller's framework writes it.
    """
    if memory == _EXACT:
        return
    found = next(_numbers(program, sources), None)
    if found is not None:
        warnings.warn(
            f"score_mod has {found} for some scores. To mask them, write -{infinity} or use mask_mod, which also skips their work. A row that has such "
            "scores only gets wrong gradients, because the backward pass starts from its float32 log-sum-exp, which is too coarse",
            stacklevel=stacklevel + 1,
        )


def _is_of_infinity(program, condition):
    """Whether a choice is made where something is -inf, as jnp.nan_to_num makes it."""
    node = program.nodes[condition]
    return node.op == "eq" and any(program.nodes[arg].payload == "-inf" for arg in node.args)


def _numbers(program, sources):
    for node in program.nodes:
        chooses = node.op == "select" and node.type == "f32" and not _is_of_infinity(program, node.args[0])
        cases = [program.nodes[arg] for arg in node.args[1:]] if chooses else ()
        yield from (float(case.payload) for case in cases if case.op == "constant" and -math.inf < float(case.payload) <= _MASK_LIKE)
    for decl, source in zip(program.operands, sources, strict=True):
        array = source.known_array() if decl.type == "f32" else None
        if array is not None and array.size <= _MAX_ELEMENTS:
            numbers = np.asarray(array).astype(np.float32)
            yield from numbers[np.isfinite(numbers) & (numbers <= _MASK_LIKE)][:1].tolist()
