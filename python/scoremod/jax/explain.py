"""What becomes of a call, and which backends can run it, without running it."""

import json

import scoremod
from scoremod.errors import UnsupportedError
from scoremod.explanation import Explanation, Operand
from scoremod.jax.api import CallOptions, trace_call
from scoremod.jax.call import dtype_of
from scoremod.jax.fused_attention import graph_modifier
from scoremod.jax.selection import XLA, device_of, memory_of, platform_of, selected
from scoremod.program import operand_name
from scoremod.sizes import sizes_of


def explain(query, key, value, score_mod=None, mask_mod=None, *, scale=None, layout="BSHD", backend=None, backends=None, **callbacks):
    """The Explanation of flex_attention's arguments, with backward; query, key and value may be jax.ShapeDtypeStructs.

    callbacks: fused_attention's score_mod_tensors (which may be empty), score_mod_bprop, score_mod_bprop_tensors and trust_bprop. With any of
    them score_mod is a callback that builds on a graph."""
    chosen_among = selected(backend, backends)
    sizes = sizes_of(layout, query, key, value)
    if callbacks:
        score_mod = graph_modifier(sizes, score_mod, **callbacks)
    dtype_of(query, key, value)
    traced = trace_call(query, key, value, score_mod, mask_mod, scale, layout, CallOptions(), chosen_among)
    problem = json.loads(traced.problem) | {"backward": True}
    if traced.call.scale is not None:
        problem["scale"] = traced.call.scale
    operands = tuple(
        Operand(operand_name(i), source.describe(), decl.axes, shape.shape, str(shape.dtype), shape.size * shape.dtype.itemsize)
        for i, (source, decl, shape) in enumerate(zip(traced.sources, traced.call.program.operands, traced.operands))
    )
    platform = platform_of(query, key, value)
    compiled = scoremod.explain(problem, backends=chosen_among, memory=memory_of(platform), device=device_of(platform))
    return Explanation(traced.call.program.text(), operands, problem, compiled)


def support(query, key, value, score_mod=None, mask_mod=None, *, scale=None, layout="BSHD", **callbacks):
    """backend -> reasons why it can't run flex_attention with these arguments, forward and backward; () where it can. "xla", which
    composes it of XLA operations, always can. callbacks: explain's."""
    try:
        answers = explain(query, key, value, score_mod, mask_mod, scale=scale, layout=layout, **callbacks).answers()
    except UnsupportedError as error:
        answers = {answer["backend"]: (str(error),) for answer in _any_answers()}
    return {**answers, XLA: ()}


def _any_answers():
    """Every backend's answer to some problem: their names."""
    return scoremod.support({"batch": 1, "heads_q": 1, "seq_q": 1, "dim_qk": 8})
