"""Modified scores at single places, computed by the library: attention to one key alone has the key's modified score as its log-sum-exp."""

import re
from typing import NamedTuple

import numpy as np

from scoremod.attention import Attention
from scoremod.call_spec import Offsets
from scoremod.errors import InvalidArgumentError
from scoremod.tensors import refuse_mask

_AXES = ("b", "h", "q_idx", "kv_idx")
_DECLARATION = re.compile(r"^\s*(operand|table)\s+(\w+)\s*:\s*(f32|i32|bool)\s*(?:\[([^\]]*)\]|rank\s+\d+)?\s*$")


class Operand(NamedTuple):
    """An operand of a program: its name, and the axes that it has a dimension for; None for a table."""

    name: str
    axes: tuple | None


def operands_of(problem):
    """The Operands of a problem as Attention.problem gives it."""
    found = []
    for line in problem["program"]:
        if match := _DECLARATION.match(line):
            kind, name, _, axes = match.groups()
            found.append(Operand(name, None if kind == "table" else tuple(axis.strip() for axis in (axes or "").split(",") if axis.strip())))
    return found


def float_array(array, dtype):
    """The array as the float32 of which scores are made, whatever its problem's dtype is; integers and bools as they are."""
    if dtype == "bf16" and array.dtype == np.uint16:  # the bits
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype({"i32": np.int32, "bool": np.bool_}.get(dtype, np.float32))


class HeadScores:
    """The modified scores of one head of one batch, for queries from `first` on."""

    def __init__(self, problem, arrays, batch, head, first, count):
        """problem: as Attention.problem gives it; arrays: operand's name -> array in the problem's shape."""
        self._places = {"b": (batch, 1), "h": (head, 1), "q_idx": (first, count)}
        self._operands, self._arrays = operands_of(problem), {}
        described = []
        for spec in problem["operands"]:
            name = spec["name"]
            operand = next((each for each in self._operands if each.name == name), None)
            if operand is None:  # lengths, a sink: not of a single score
                continue
            if name not in arrays:
                raise InvalidArgumentError(f"operands: expected an array for '{name}', which the program reads; found none")
            refuse_mask(arrays[name], f"operand '{name}'")
            array = float_array(np.asarray(arrays[name]), spec["dtype"])
            if array.shape != tuple(spec["shape"]):
                raise InvalidArgumentError(f"operands: expected '{name}' in shape {tuple(spec['shape'])}, found {array.shape}")
            self._arrays[name] = np.ascontiguousarray(self._cut(operand, array))
            shape = [1 if operand.axes and operand.axes[i] == "kv_idx" else size for i, size in enumerate(self._arrays[name].shape)]
            described.append({"name": name, "dtype": {"i32": "i32", "bool": "bool"}.get(spec["dtype"], "f32"), "shape": shape})
        one_key = {"batch": 1, "heads_q": 1, "heads_kv": 1, "seq_q": count, "seq_kv": 1, "dim_qk": 1, "dim_v": 1, "dtype": "f32", "layout": "BHSD"}
        self._attention = Attention(
            {**one_key, "scale": 1.0, "program": problem["program"], "operands": described, "stats": True, "index_offsets": True}, backend="cpu"
        )
        self._offsets = Offsets(batch, head, first, 0)
        self._one, self._count = np.ones((1, 1, 1, 1), np.float32), count

    def _cut(self, operand, array):
        for dim, axis in enumerate(operand.axes or ()):
            if axis in self._places:
                begin, count = self._places[axis]
                array = array.take(range(begin, begin + count), axis=dim)
        return array

    def of_key(self, key, score=0.0):
        """float32 [queries]: what becomes of `score` at this key; -inf where it is masked."""
        q = np.full((1, 1, self._count, 1), score, np.float32)
        arrays = {}
        for operand in self._operands:
            array = self._arrays[operand.name]
            if operand.axes and "kv_idx" in operand.axes:
                array = np.ascontiguousarray(array.take([key], axis=operand.axes.index("kv_idx")))
            arrays[operand.name] = array
        _, lse = self._attention.forward(q, self._one, self._one, arrays, return_lse=True, offsets=self._offsets._replace(key=key))
        return lse[0, 0]
