"""flex_attention inside torch.compile: its function is captured as a graph, which is traced to a program once the compiler asks what it computes.

Dynamo knows how to make a graph of a function and of what it closes over where that is the argument of a higher-order operator of PyTorch's. So
the score functions become the body of one; when the graph is run or traced further, the operator does what flex_attention does outside.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch._dynamo.variables.higher_order_ops import BaseHOPVariable, _hop_name_to_variable_class
from torch._higher_order_ops import BaseHOP


class _FlexAttention(BaseHOP):
    """(body, *operands, **options) -> what the body returns, o, lse, the largest scores and the largest magnitude in the last four places.

    operands: the arguments of `body` in call_in_graph, and what the functions close over, in the order of the graph's inputs; among them the numbers
        that a dynamic graph has as inputs.
    attend: api.attend_graph, which is put here since a call in eager mode stands above this module.
    """

    attend: Callable[..., Any]

    def __init__(self):
        super().__init__("scoremod_flex_attention")

    def __call__(self, body, *operands, **options):
        anchors = _anchors(body)
        query, key, value, dropout, *bound = (operands[i] for i in anchors[5:])

        def functions(*arguments):
            given = dict(zip(anchors, arguments))
            return body(*(given.get(i, operand) for i, operand in enumerate(operands)))

        captured = [each for i, each in enumerate(operands) if i not in anchors and isinstance(each, torch.Tensor)]
        results = self.attend(functions, query, key, value, dropout, bound, captured, **options)
        score, empty = operands[anchors[0]], [operands[i].new_empty(()) for i in anchors]
        return score.new_empty(()), score.new_empty((), dtype=torch.bool), *empty, *results


def _anchors(body):
    """Which of the graph's inputs are the arguments of call_in_graph's body: those that its anchors are made of, between two results and four. Dynamo
    has its own order."""
    *_, output = body.graph.nodes
    inputs = [node for node in body.graph.nodes if node.op == "placeholder"]
    return [inputs.index(anchor.args[0]) for anchor in output.args[0][2:-4]]


flex_attention_operator = _FlexAttention()


class _FlexAttentionVariable(BaseHOPVariable):
    """Dynamo's variable for the operator. As in PyTorch's own flex_attention, tensors in its functions are indexed by tensors."""

    # Query, key and value are often parts of one tensor.
    supports_aliasing = True

    def _call_function(self, *arguments):
        with TransformGetItemToIndex():
            return super()._call_function(*arguments)


_hop_name_to_variable_class[flex_attention_operator.__name__] = _FlexAttentionVariable


def call_in_graph(query, key, value, score_mod, mask_mod, dropout, bound, enable_gqa, with_lse, spec, out_dtype):
    """(o, lse, largest scores, largest magnitude), while Dynamo looks. bound: the tensors of Call.bound(). spec: a CallSpec."""

    def body(score, b, h, q_idx, kv_idx, query, key, value, dropout, *bound):
        anchors = [tensor.new_zeros(()) for tensor in (score, b, h, q_idx, kv_idx, query, key, value, dropout, *bound)]
        modified = score + 0 if score_mod is None else score_mod(score, b, h, q_idx, kv_idx)
        keep = b >= 0 if mask_mod is None else mask_mod(b, h, q_idx, kv_idx)
        o = query.new_empty((*query.shape[:-1], value.shape[-1]), dtype=out_dtype)
        lse = query.new_empty(query.shape[:-1], dtype=torch.float32)
        return (modified, keep, *anchors, o, lse, query.new_empty(query.shape[:-1], dtype=torch.float32), query.new_empty((), dtype=torch.float32))

    # One tensor that is given twice would be one input of the graph.
    query, key, value, *bound = (tensor.view_as(tensor) for tensor in (query, key, value, *bound))
    score = query.new_empty((), dtype=torch.float32)
    indices = [query.new_empty((), dtype=torch.int32) for _ in range(4)]
    settings = {"enable_gqa": enable_gqa, "with_lse": with_lse, "has_score_mod": score_mod is not None, "has_mask_mod": mask_mod is not None}
    dropout = torch.zeros((2,), dtype=torch.int64, device="cpu") if dropout is None else dropout
    *_, o, lse, largest, amax = flex_attention_operator(body, score, *indices, query, key, value, dropout, *bound, **spec.in_graph(), **settings)
    return o, lse, largest, amax
