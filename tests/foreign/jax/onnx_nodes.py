"""The node tests of ONNX's Attention and FlexAttention that its wheel brings with data, as problems of scoremod.

The operators are those of https://onnx.ai/onnx/operators/onnx__Attention.html. A score_mod is a graph of ONNX nodes over all scores; evaluate()
applies it to whatever knows Python's operators.
"""

import dataclasses
import functools
import operator
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data" / "node"


@dataclasses.dataclass
class Node:
    """One test: attributes, and arrays by the operator's own names for inputs and outputs."""

    attributes: dict
    inputs: dict
    outputs: dict

    def part(self, name):
        """Q, K or V as [batch, heads, sequence, dim], with what came before it."""
        array, heads = self.inputs[name], self.attributes.get("q_num_heads" if name == "Q" else "kv_num_heads")
        if array.ndim == 3:
            array = array.reshape(*array.shape[:2], heads, -1).transpose(0, 2, 1, 3)
        past = self.inputs.get({"K": "past_key", "V": "past_value"}.get(name))
        return array if past is None else np.concatenate([past, array], axis=2)

    def result(self, o):
        """An output [batch, heads, sequence, dim] as the node has it."""
        if self.inputs["Q"].ndim == 4:
            return o
        return o.transpose(0, 2, 1, 3).reshape(o.shape[0], o.shape[2], -1)


@functools.cache
def names(prefix):
    """The tests that are one node with data: those named _expanded have the same data and are the operator's definition as a graph."""
    found = (path.parent.name.removeprefix("test_") for path in DATA.glob(f"test_{prefix}*/model.onnx"))
    return sorted(name for name in found if "_expanded" not in name)


@functools.cache
def load(name):
    folder = DATA / f"test_{name}"
    (node,) = onnx.load(folder / "model.onnx").graph.node
    attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}

    def arrays(kind, named):
        present = [each for each in named if each]
        return {each: numpy_helper.to_array(onnx.load_tensor(folder / "test_data_set_0" / f"{kind}_{i}.pb")) for i, each in enumerate(present)}

    return Node(attributes, arrays("input", node.input), arrays("output", node.output))


_BINARY = {"Add": operator.add, "Sub": operator.sub, "Mul": operator.mul, "Div": operator.truediv, "GreaterOrEqual": operator.ge}
_OF_SHAPES = {"Shape", "Gather", "Range", "Reshape", "Constant"}


def evaluate(graph, score, q_idx, kv_idx, shape, functions):
    """Applies a score_mod graph to one score, or to all.

    Parameters
    ----------
    graph : onnx.GraphProto
        The attribute score_mod: a graph from the scores [batch, heads, queries, keys] to those that the softmax takes.
    score, q_idx, kv_idx : object
        What stands for them; numbers of positions that the graph makes with Range become q_idx or kv_idx.
    shape : tuple of int
        The scores' shape.
    functions : object
        With tanh(x), where(condition, x, y), to_float(x) and number(x), of a Python number.
    """
    of_scores = {graph.input[0].name: score}  # and what follows from them and from positions
    known = {each.name: numpy_helper.to_array(each) for each in graph.initializer}

    def operand(name):
        if name in of_scores:
            return of_scores[name]
        x = known[name]
        if x.size == 1:
            return functions.number(x.item())
        for axis, index in ((-2, q_idx), (-1, kv_idx)):
            if x.ndim >= -axis and x.size == x.shape[axis] and np.array_equal(x.ravel(), np.arange(shape[axis])):
                return index
        raise NotImplementedError(f"an array of shape {x.shape} in a score_mod")

    for node in graph.node:
        if node.op_type in _OF_SHAPES:
            known[node.output[0]] = _of_shapes(node, [known.get(name) for name in node.input], shape)
        else:
            of_scores[node.output[0]] = _of_scores(node, [operand(name) for name in node.input], functions)
    return of_scores[graph.output[0].name]


def _of_shapes(node, given, shape):
    if node.op_type == "Constant":
        return numpy_helper.to_array(node.attribute[0].t)
    if node.op_type == "Shape":
        return np.asarray(shape)
    return {"Gather": np.take, "Range": np.arange, "Reshape": np.reshape}[node.op_type](*given)


def _of_scores(node, given, functions):
    if node.op_type in _BINARY:
        return _BINARY[node.op_type](*given)
    if node.op_type == "Cast":
        assert node.attribute[0].i == onnx.TensorProto.FLOAT
        return functions.to_float(*given)
    return {"Tanh": functions.tanh, "Where": functions.where}[node.op_type](*given)
