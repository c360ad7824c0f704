"""A traced attention as the JSON of docs/reference/problem.md."""

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


class ProblemTemplate:
    """Problems that differ in sizes and strides alone: their JSON, of which the rest is written once."""

    def __init__(self, program, *, dtype, layout, layouts=None, scale=None, backward=False, stats=False, deterministic=False, index_offsets=False, **fields):
        """program: a scoremod.program.Program.

        dtype: of query, key, value and output, as in OperandTensor.
        layouts: "q", "k", "v" or "o" -> its layout, where it isn't `layout`.
        scale: a number; None for 1 / sqrt(dim_qk).
        fields: others of docs/reference/problem.md, by their names.
        """
        problem = {
            "dtype": dtype,
            "layout": layout,
            "program": program.text(),
            "backward": backward,
            "stats": stats,
            "deterministic": deterministic,
            "index_offsets": index_offsets,
            **fields,
        }
        if scale is not None:
            problem["scale"] = scale
        self._layouts = layouts or {}
        self._rest = json.dumps(problem)[1:]

    def open_text(self, sizes, operands, named=None, sized=None):
        """The JSON with all sizes open but the head dims, and without strides. The arguments are those of text(), of any call."""
        described = [_operand(name, operand._replace(shape=(None,) * len(operand.shape), strides=None)) for name, operand in named_operands(operands, named)]
        fields = f"{json.dumps(sized)[1:-1]}, " if sized else ""
        return f'{_OPEN_SIZES % (sizes.dim_qk, sizes.dim_v)}"operands": [{", ".join(described)}], {self._lies({})}{fields}{self._rest}'

    def text(self, sizes, operands, tensors=None, named=None, sized=None):
        """The JSON.

        sizes: scoremod.sizes.Sizes.
        operands: the OperandTensor of each operand of the program, in its order.
        tensors: for "q", "k", "v" or "o" that lie otherwise than `layout` says: the strides of batch, head, sequence and dim in elements.
        named: name -> OperandTensor of what fields bring to bind, where it isn't of its field's dtype or shape, or has no gradient.
        sized: fields that are sizes, by their names.
        """
        described = [_operand(name, operand) for name, operand in named_operands(operands, named)]
        # A tensor of another rank is refused where it meets the call's others.
        lies = self._lies({name: strides for name, strides in (tensors or {}).items() if len(strides) == 4})
        fields = f"{json.dumps(sized)[1:-1]}, " if sized else ""
        # JAX leaves sizes open, too.
        numbers = sizes if None not in sizes else ["null" if size is None else size for size in sizes]
        return f'{_SIZES % tuple(numbers)}"operands": [{", ".join(described)}], {lies}{fields}{self._rest}'

    def _lies(self, strides):
        """The fields of the tensors that lie otherwise than `layout` says. strides: name -> strides."""
        if not self._layouts:
            return "".join(_TENSOR % (name, "", *each) for name, each in strides.items())
        layouts = {name: f'"layout": "{layout}"' for name, layout in self._layouts.items()}
        only = "".join(f'"{name}": {{{layout}}}, ' for name, layout in layouts.items() if name not in strides)
        return only + "".join(_TENSOR % (name, f"{layouts[name]}, " if name in layouts else "", *each) for name, each in strides.items())


def problem_json(sizes, program, operands, *, tensors=None, named=None, **options):
    """The JSON of one problem. options: as a ProblemTemplate has them; others: as its text()."""
    return ProblemTemplate(program, **options).text(sizes, operands, tensors, named)


_SIZES = '{"batch": %s, "heads_q": %s, "heads_kv": %s, "seq_q": %s, "seq_kv": %s, "dim_qk": %s, "dim_v": %s, '
_OPEN_SIZES = '{"batch": null, "heads_q": null, "heads_kv": null, "seq_q": null, "seq_kv": null, "dim_qk": %d, "dim_v": %d, '
_TENSOR = '"%s": {%s"strides": {"batch": %d, "head": %d, "sequence": %d, "dim": %d}}, '


def named_operands(operands, named):
    """(name, OperandTensor) of a program's operands, and of those that fields bring."""
    return [*((operand_name(number), operand) for number, operand in enumerate(operands)), *(named or {}).items()]


def _operand(name, operand):
    gradient = "true" if operand.gradient else "false"
    strides = "" if operand.strides is None else f', "strides": {list(operand.strides)}'
    shape = json.dumps(operand.shape)
    return f'{{"name": "{name}", "dtype": "{operand.dtype}", "shape": {shape}, "gradient": {gradient}{strides}}}'
