"""How a call is compiled, and which backends can run it, without running it."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Literal

import jax
from jax.typing import ArrayLike

import scoremod
from scoremod.call_spec import CallSpec
from scoremod.callback_arguments import refuse_positions
from scoremod.errors import UnsupportedError
from scoremod.explanation import Explanation, Operand
from scoremod.jax.api import ELSEWHERE, functions_without_fields, placed_of, tensors_without_fields, trace_call, traced_in_own_fields
from scoremod.jax.call import dtype_of, split_scale
from scoremod.jax.float8 import cache_dtype
from scoremod.jax.fused_attention import PLACES, graph_modifier, score_sizes
from scoremod.jax.operands import called
from scoremod.jax.own_fields import ARRAYS, FIELDS
from scoremod.jax.query_starts import started
from scoremod.jax.selection import XLA, chosen_backends, device_of, memory_of, platform_of
from scoremod.jax.token_lists import ListedCall, paged_call, refuse_explicit_axes
from scoremod.program import operand_name
from scoremod.query_positions import named
from scoremod.signatures import Backends, Layout, MaskName, Modifier
from scoremod.sizes import sizes_of
from scoremod.unknown_arguments import arguments_of, refuse

CALLBACKS = ("score_mod_tensors", "score_mod_bprop", "score_mod_bprop_tensors", "trust_bprop")


def explain(
    query: ArrayLike | jax.ShapeDtypeStruct,
    key: ArrayLike | jax.ShapeDtypeStruct,
    value: ArrayLike | jax.ShapeDtypeStruct,
    score_mod: Modifier | None = None,
    mask_mod: Modifier | MaskName | None = None,
    *,
    scale: ArrayLike | None = None,
    layout: Layout | Literal["THD"] = "BSHD",
    lengths: Any = None,
    q_offsets: ArrayLike | None = None,
    kv_offsets: ArrayLike | None = None,
    page_table: Any = None,
    max_length: int | tuple[int, int] | None = None,
    q_start: ArrayLike | Literal["bottom_right"] | None = None,
    token_list: ArrayLike | None = None,
    sink: ArrayLike | None = None,
    backend: str | None = None,
    backends: Backends = None,
    **callbacks: Any,
) -> Explanation:
    """Explains a call of flex_attention with its backward; with pages that are read in place, the forward.

    Parameters
    ----------
    query, key, value : array or jax.ShapeDtypeStruct
    score_mod, mask_mod, scale, layout, lengths, q_offsets, kv_offsets, page_table, max_length, q_start, sink, backend, backends
        flex_attention's.
    token_list : integer array [batch, queries, entries], optional
        flex_attention's. What is explained is the call that it becomes: one batch for each query of each batch, on pages of one token.
    callbacks
        fused_attention's score_mod_tensors (which may be empty), score_mod_bprop, score_mod_bprop_tensors and trust_bprop. With any of them
        score_mod is a callback that builds on a graph.

    Returns
    -------
    Explanation
        Its `road` says whether sequences, pages and a sink are fields of the problem, or arrays made before and after it.
        With token_list, `listed` has the caller's numbers of batches and queries.

    Raises
    ------
    InvalidArgumentError, UnsupportedError
        As flex_attention, but not where no backend can run the call: the Explanation has the reasons.
    """
    number, array = split_scale(scale)
    spec = CallSpec(scale=number, backends=chosen_backends(backend, backends), dtype_kv=cache_dtype(query, key))
    unknown = [name for name in callbacks if name not in CALLBACKS]
    if unknown:
        refuse("explain", unknown, [*arguments_of(explain), *CALLBACKS], ELSEWHERE)
    places: dict[str, Any] = dict(zip(PLACES, (q_offsets, kv_offsets, page_table, lengths, max_length)))
    if callbacks:
        if named(mask_mod, q_start)[1] is not None:
            refuse_positions(True)
        score_mod = graph_modifier(score_sizes(layout, query, key, value, places), score_mod, **callbacks)
    if token_list is not None:
        call = ListedCall(query, key, value, score_mod, mask_mod, layout, lengths, q_start, places)
        return _explained_list(token_list, call, scale=scale, sink=sink, backend=backend, backends=backends)
    placed, road, traced = placed_of(query, key, value, layout, **places), "", None
    mask_mod, q_start = named(mask_mod, q_start)
    if q_start is not None:
        score_mod, mask_mod = started(q_start, query, key, layout, placed, lengths, score_mod, mask_mod)
    if placed is not None or sink is not None:
        traced = traced_in_own_fields(query, key, value, score_mod, mask_mod, spec, array, layout, placed, lengths, sink)
        road = ARRAYS if traced is None else FIELDS
    if traced is None:
        score_mod, mask_mod, layout = functions_without_fields(score_mod, mask_mod, query, layout, placed, lengths)
        query, key, value = jax.eval_shape(lambda *x: tensors_without_fields(*x, None if placed is None else placed.of(*x[1:])), query, key, value)  # pyright: ignore[reportCallIssue]
        sizes_of(layout, query, key, value)
        dtype_of(query, key, value, float8=True)
        traced = trace_call(query, key, value, score_mod, mask_mod, spec, array, layout)
    if traced.has_open_sizes:
        raise UnsupportedError("explain: expected sizes that are numbers, on which the answer depends, found symbolic ones of jax.export")
    problem = json.loads(traced.problem)
    problem["backward"] = traced.call.has_backward
    if traced.call.scale is not None:
        problem["scale"] = traced.call.scale
    names = called(traced.sources, (score_mod, mask_mod))
    operands = tuple(
        Operand(name := operand_name(i), source.describe(), decl.axes, shape.shape, str(shape.dtype), shape.size * shape.dtype.itemsize, names.get(name, ""))
        for i, (source, decl, shape) in enumerate(zip(traced.sources, traced.call.program.operands, traced.operands))
    )
    platform = platform_of(query, key, value)
    compiled = scoremod.explain(problem, backends=spec.backends, memory=memory_of(platform), device=device_of(platform))
    return Explanation(traced.call.program.text(), operands, problem, compiled, road)


def _explained_list(token_list, call, **options):
    """explain() of a ListedCall. options: its other arguments."""
    found = explain(**paged_call(token_list, call), **options)
    batch, queries = (call.query.shape[call.layout.index(letter)] for letter in "BS")
    return dataclasses.replace(found, listed=(batch, queries))


def support(
    query: ArrayLike | jax.ShapeDtypeStruct,
    key: ArrayLike | jax.ShapeDtypeStruct,
    value: ArrayLike | jax.ShapeDtypeStruct,
    score_mod: Modifier | None = None,
    mask_mod: Modifier | None = None,
    *,
    scale: ArrayLike | None = None,
    layout: Layout = "BSHD",
    token_list: ArrayLike | None = None,
    **callbacks: Any,
) -> dict[str, tuple[str, ...]]:
    """Each backend's reasons against a call.

    Parameters
    ----------
    query, key, value, score_mod, mask_mod, scale, layout
        flex_attention's.
    token_list : integer array [batch, queries, entries], optional
        explain's.
    **callbacks
        explain's.

    Returns
    -------
    dict of str to tuple of str
        backend -> the reasons why it can't run the call, forward and backward; () where it can. "xla", which composes it of XLA operations, always
        can.

    Raises
    ------
    InvalidArgumentError
        For what flex_attention refuses.
    UnsupportedError
        For what it refuses with token_list on XLA, too.
    """
    if token_list is not None:
        refuse_explicit_axes(token_list, query, key, value)
    try:
        answers = explain(query, key, value, score_mod, mask_mod, scale=scale, layout=layout, token_list=token_list, **callbacks).answers()
    except UnsupportedError as error:
        answers = {answer["backend"]: (str(error),) for answer in _any_answers()}
    return {**answers, XLA: ()}


def _any_answers():
    """Every backend's answer to some problem: their names."""
    return scoremod.support({"batch": 1, "heads_q": 1, "seq_q": 1, "dim_qk": 8})
