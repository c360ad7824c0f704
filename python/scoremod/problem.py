"""A traced attention as the JSON of docs/problem.md."""

import json
from typing import NamedTuple

from scoremod.program import operand_name


class OperandTensor(NamedTuple):
    """The tensor that an operand of a program is read from. dtype: "f32", "f16", "bf16", "i32" or "bool"; strides in elements, None for those
    of a dense tensor; gradient: whether backward calls may ask for its gradient."""

    dtype: str
    shape: tuple
    gradient: bool = True
    strides: tuple | None = None


def problem_json(
    sizes, program, operands, *, dtype, layout, scale=None, backward=False, stats=False, deterministic=False, index_offsets=False, tensors=None, named=None,
    **fields,
):
    """The text.

    sizes: scoremod.sizes.Sizes.
    operands: the OperandTensor of each operand of the scoremod.program.Program, in its order.
    dtype: of query, key, value and output, as in OperandTensor.
    scale: a number; None for 1 / sqrt(dim_qk).
    tensors: for "q", "k", "v" or "o" that lie otherwise than `layout` says: {"batch", "head", "sequence", "dim"} -> stride in elements.
    named: name -> OperandTensor of what fields bring to bind, where it isn't of its field's dtype or shape, or has no gradient.
    fields: others of docs/problem.md, by their names.
    """
    problem = {
        **sizes._asdict(),
        "dtype": dtype,
        "layout": layout,
        "program": program.text(),
        "operands": [_operand(operand_name(number), operand) for number, operand in enumerate(operands)]
        + [_operand(name, operand) for name, operand in (named or {}).items()],
        "backward": backward,
        "stats": stats,
        "deterministic": deterministic,
        "index_offsets": index_offsets,
        **fields,
    }
    for name, strides in (tensors or {}).items():
        problem[name] = {"strides": strides}
    if scale is not None:
        problem["scale"] = scale
    return json.dumps(problem)


def _operand(name, operand):
    described = {
        "name": name,
        "dtype": operand.dtype,
        "shape": list(operand.shape),
        "gradient": operand.gradient,
    }
    if operand.strides is not None:
        described["strides"] = list(operand.strides)
    return described
