"""What becomes of a call, and which backends can run it, without running it."""

import dataclasses
import json


import scoremod
from scoremod.errors import UnsupportedError
from scoremod.jax.api import XLA, trace_call
from scoremod.jax.call import dtype_of, sizes_of
from scoremod.jax.program import operand_name


@dataclasses.dataclass(frozen=True)
class Operand:
    """A tensor that the traced program reads."""

    name: str
    origin: str  # "captured array", "scalar", or "computed by XLA" before the attention
    axes: tuple  # what it has a dimension for; empty for a table, which has indices
    shape: tuple
    dtype: str
    bytes: int


@dataclasses.dataclass(frozen=True)
class Explanation:
    """str() of it is a page for people."""

    program: str  # as traced: docs/program_text.md
    operands: tuple
    problem: dict  # docs/problem.md
    compiled: dict  # what the compiler made of it: the fields of `scoremod explain --json`

    def __str__(self):
        lines = [self.program, ""]
        for operand in self.operands:
            where = f"over {', '.join(operand.axes)}" if operand.axes else "table" if operand.shape else "scalar"
            lines.append(f"{operand.name}: {operand.dtype}{list(operand.shape)}, {where}, {operand.origin}, {operand.bytes} bytes")
        mask = self.compiled["mask"]
        lines += ["", f"mask: {mask['kind']}", f"derivative:\n{self.compiled['derivative']}"]
        lines += [f"{name}: {'yes' if not reasons else '; '.join(reasons)}" for name, reasons in self.answers().items()]
        return "\n".join(lines)

    def answers(self):
        """backend -> why it can't run this; nothing where it can."""
        return {answer["backend"]: tuple(answer["reasons"]) for answer in self.compiled["backends"]}


def explain(query, key, value, score_mod=None, mask_mod=None, *, scale=None, layout="BSHD"):
    """The Explanation of flex_attention's arguments, with backward; query, key and value may be jax.ShapeDtypeStructs."""
    sizes_of(layout, query, key, value)
    dtype_of(query, key, value)
    traced = trace_call(query, key, value, score_mod, mask_mod, scale, layout, False, None)
    problem = json.loads(traced.problem) | {"backward": True}
    if traced.call.scale is not None:
        problem["scale"] = traced.call.scale
    operands = tuple(
        Operand(operand_name(i), source.describe(), decl.axes, shape.shape, str(shape.dtype), shape.size * shape.dtype.itemsize)
        for i, (source, decl, shape) in enumerate(zip(traced.sources, traced.call.program.operands, traced.operands))
    )
    return Explanation(traced.call.program.text(), operands, problem, scoremod.explain(problem))


def support(query, key, value, score_mod=None, mask_mod=None, *, scale=None, layout="BSHD"):
    """backend -> reasons why it can't run flex_attention with these arguments, forward and backward; () where it can. "xla", which
    composes it of XLA operations, always can."""
    try:
        answers = explain(query, key, value, score_mod, mask_mod, scale=scale, layout=layout).answers()
    except UnsupportedError as error:
        answers = {answer["backend"]: (str(error),) for answer in _any_answers()}
    return {**answers, XLA: ()}


def _any_answers():
    """Every backend's answer to some problem: their names."""
    return scoremod.support({"batch": 1, "heads_q": 1, "seq_q": 1, "dim_qk": 8})
