"""fused_attention: the score function as a callback that builds on a graph."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.extend import core
from jax.typing import ArrayLike

from scoremod.callback_arguments import AtLeast, check_callbacks, check_names, refuse_positions, shape_of_scores
from scoremod.jax.api import flex_attention, placed_of
from scoremod.jax.arrays import known_array
from scoremod.jax.arrays import tensors as arrays_of
from scoremod.jax.graph import Graph
from scoremod.jax.graph_callback import ONE_AT_A_TIME, call_back, check_backward, element
from scoremod.jax.jaxprs import without_arrays
from scoremod.jax.layout_hint import warn_of_heads_before_positions
from scoremod.jax.linear_rules import is_multiple_of_first
from scoremod.jax.open_sizes import comparable
from scoremod.program import AXES
from scoremod.query_positions import named
from scoremod.signatures import Layout, Modifier
from scoremod.sizes import sizes_of

# flex_attention's arguments that say where the sequences of a call are.
PLACES = ("q_offsets", "kv_offsets", "page_table", "lengths", "max_length")


def fused_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    score_mod: Modifier | None = None,
    score_mod_bprop: Modifier | None = None,
    score_mod_tensors: Mapping[str, ArrayLike] | None = None,
    score_mod_bprop_tensors: Mapping[str, ArrayLike] | None = None,
    trust_bprop: bool = False,
    layout: Layout | Literal["THD"] | None = None,
    **options: Any,
) -> Any:
    """flex_attention with a callback that builds on a graph, as cuDNN's callbacks do.

    Parameters
    ----------
    query, key, value, layout
        flex_attention's.
    score_mod : function, optional
        score_mod(graph, score, tensors) returns a tensor of the graph. graph is a scoremod.jax.graph.Graph, with the methods of cudnn-frontend's
        graph. score was multiplied by the scale.
    score_mod_bprop : function, optional
        score_mod_bprop(graph, dscore, tensors) returns the derivative. It isn't needed: the backward pass is derived from score_mod. It is called
        after score_mod on the same graph, so it may use tensors that score_mod made. It is compared with the derived one at random scores, and
        refused if it differs. Tensors of it that JAX traces, where none of score_mod's is traced, can't be compared.
    score_mod_tensors : dict of str to array, optional
        Arrays that broadcast against [batch, heads, seq_q, seq_kv], or numbers. score_mod gets them as tensors of the graph, under their names.
        Gradients flow to the arrays. With q_offsets or page_table the batch is that of the sequences, and an array has as many positions as the
        longest of them or more.
    score_mod_bprop_tensors : dict of str to array, optional
        Likewise score_mod_bprop's.
    trust_bprop : bool
        Takes score_mod_bprop for the derivative by the score whatever score_mod computes, as for a straight-through gradient. One that is no
        multiple of dscore, such as one that clips it, runs on backend="xla" alone. Gradients of the tensors are derived from score_mod as without.
    options
        flex_attention's scale, return_lse, deterministic, dropout, backends and so on.

    Returns
    -------
    array or tuple of arrays
        flex_attention's.

    Raises
    ------
    InvalidArgumentError
        For arguments that don't fit, and for a score_mod_bprop that isn't score_mod's derivative.
    UnsupportedError
        For a callback that can't be expressed, and for calls that no backend can run.
    """
    query, key, value = arrays_of(query, key, value)
    if layout is None:
        layout = "BSHD"
        warn_of_heads_before_positions(query, key, 2)
    if named(options.get("mask_mod"), options.get("q_start"))[1] is not None:
        refuse_positions(score_mod is not None)
    modifier = graph_modifier(
        score_sizes(layout, query, key, value, options), score_mod, score_mod_bprop, score_mod_tensors, score_mod_bprop_tensors, trust_bprop
    )
    return flex_attention(query, key, value, modifier, layout=layout, **options)


def score_sizes(layout, query, key, value, options):
    """(batch, heads, seq_q, seq_kv) of the scores that a callback sees. options: flex_attention's, of which some say where sequences and pages are."""
    placed = placed_of(query, key, value, layout, **{name: options.get(name) for name in PLACES})
    if placed is None:
        axes = sizes_of(layout, query, key, value).axes()
        return tuple(axes[axis] for axis in AXES)
    queries, keys = placed.longest()
    queries = query.shape[layout.index("S")] if queries is None else AtLeast(queries)  # those of pages are dense
    return placed.batch, query.shape[layout.index("H")], queries, AtLeast(keys)


def graph_modifier(sizes, score_mod, score_mod_bprop=None, score_mod_tensors=None, score_mod_bprop_tensors=None, trust_bprop=False):
    """The score_mod of flex_attention that fused_attention's callbacks are, for scores of score_sizes(); None without one."""
    check_callbacks(score_mod, score_mod_bprop, score_mod_tensors, score_mod_bprop_tensors, trust_bprop)
    if score_mod is None:
        return None
    tensors, bprop_tensors = _arrays("score_mod_tensors", score_mod_tensors, sizes), {}
    if score_mod_bprop is not None:
        bprop_tensors = _arrays("score_mod_bprop_tensors", score_mod_bprop_tensors, sizes)
        same = {  # the name in the forward of a tensor of the backward that is one of the forward's
            name: next((other for other, array in (score_mod_tensors or {}).items() if array is value), None)
            for name, value in (score_mod_bprop_tensors or {}).items()
        }
        if not trust_bprop:
            with comparable():
                check_backward(score_mod, score_mod_bprop, tensors, bprop_tensors, same, sizes)

    # Arrays, scalars too, are captured: their values are no part of the program.
    captured = {name: jnp.asarray(array) for name, array in tensors.items()}

    def modifier(score, *indices):
        with ONE_AT_A_TIME:
            elements = {name: element(array, indices) for name, array in captured.items()}
            if not trust_bprop:
                return call_back(score_mod, "score_mod", score, elements, indices)
            graph = Graph(indices)
            value = call_back(score_mod, "score_mod", jax.lax.stop_gradient(score), elements, indices, graph)
            given = {name: element(jnp.asarray(array), indices) for name, array in bprop_tensors.items()}
            backward = functools.partial(call_back, score_mod_bprop, "score_mod_bprop", elements=given, indices=indices, graph=graph)
            jaxpr = jax.make_jaxpr(lambda d_score: backward(score=d_score))(score)
            if is_multiple_of_first(jaxpr):
                return _with_slope(value, core.jaxpr_as_fun(jaxpr)(jnp.ones_like(score))[0], score)
            return _with_backward(without_arrays(jaxpr), value, score, jaxpr.consts)

    return modifier


@jax.custom_jvp
def _with_slope(value, slope, score):
    """value, and beside its own derivative `slope` by the score."""
    return value


@_with_slope.defjvp
def _slope_rule(primals, tangents):
    value, slope, _ = primals
    d_value, _, d_score = tangents
    return value, d_value + slope * d_score


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _with_backward(jaxpr, value, score, arrays):
    """value, and beside its own derivative what the jaxpr of a backward callback, which captures the arrays, makes of the gradient by the score."""
    return value


def _backward_rule(jaxpr, arrays, upstream):
    (d_score,) = core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, arrays))(upstream)
    return upstream, d_score, None


_with_backward.defvjp(lambda jaxpr, value, score, arrays: (value, arrays), _backward_rule)


def _arrays(what, given, sizes):
    """name -> array of rank 4 or 0, of NumPy where the caller's value is known even while JAX traces."""
    check_names(what, given)
    arrays = {}
    for name, value in (given or {}).items():
        array = known_array(f"{what}['{name}']", value)
        arrays[name] = array.reshape(shape_of_scores(f"{what}['{name}']", array.shape, sizes))
    return arrays
