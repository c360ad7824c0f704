"""Calls whose sequences, pages and sinks are fields of the problem itself. A backend then reads the tensors in place: nothing is gathered, no
mask separates sequences, and no sink is applied afterwards.

Calls that no backend takes so run as scoremod.jax.api does it: tokens as one sequence, gathered keys, and a sink applied to the output."""

import functools

import jax
import jax.numpy as jnp

from scoremod.attention import support
from scoremod.errors import UnsupportedError
from scoremod.jax.call import Call, TracedCall, problem_text
from scoremod.jax.lengths_and_sinks import checked_sink
from scoremod.jax.open_sizes import check_open, comparable, is_open, with_some_sizes
from scoremod.jax.sequences import Sequences
from scoremod.jax.trace import trace
from scoremod.sizes import sizes_of

FIELDS, ARRAYS = "fields of the problem", "arrays made before and after it"


def trace_own_fields(query, key, value, score_mod, mask_mod, spec, scale, layout, placed, sink):
    """The TracedCall with the problem's own fields. scale: an array or None. placed: Sequences, Pages, MixedBatch or None."""
    place = None if placed is None else placed.place()
    sizes = sizes_of(layout, query, key, value) if place is None else place.sizes(layout, query, key, value)
    has_open_sizes = is_open(query, key, value)
    if has_open_sizes and place is not None:
        raise UnsupportedError("expected numbers for the sizes of sequences and pages, which are fields of the problem, found symbolic ones of jax.export")
    check_open(sizes)
    axes, positions, upper_limits = sizes.axes(), {}, ()
    if isinstance(placed, Sequences):
        axes["b"], upper_limits = placed.batch, ("q_idx",) if placed.is_paged else ("q_idx", "kv_idx")
        if placed.first:
            positions["b"] = lambda tracer, node: tracer.builder.op("sub", node, tracer.builder.constant(placed.first, "i32"))
    with comparable():
        program, sources = trace(score_mod, mask_mod, axes, scale, positions, upper_limits, (query, key, value))
        operands = [jax.eval_shape(source.array) for source in sources]
    fields = {"place": place, "lengths": placed is not None and placed.is_paged, "sink": sink is not None}
    call = Call.of(program, layout, spec, **fields)
    # The sink is bound after the operands, and the problem has its dtype.
    of_sink = [] if sink is None else [*[None] * call.bound().index("sink"), jax.eval_shape(lambda: _sink_array(call, query, sink))]
    problem = problem_text(call, query, key, value, operands + of_sink, backward=call.has_backward, stats=True)
    return TracedCall(call, sources, operands, problem, has_open_sizes)


def bound_arrays(call, query, placed, sink, dropout_keys):
    """The arrays of call.bound(). dropout_keys: a function of the numbers of the batches."""
    arrays = [] if placed is None else placed.bound()
    if sink is not None:
        arrays.append(_sink_array(call, query, sink))
    if call.dropout:
        arrays.append(dropout_keys(placed.numbers() if isinstance(placed, Sequences) else jnp.arange(query.shape[call.axis("B")], dtype=jnp.int32)))
    return arrays


def _sink_array(call, query, sink):
    sink = checked_sink(sink, query.shape[call.axis("H")])
    return sink.astype(jnp.float32) if sink.dtype == jnp.float64 else sink


def takes_own_fields(traced, memory):
    """Whether one of the call's backends runs its problem, in both directions where there are two; found out without building anything."""
    problem = with_some_sizes(traced.problem) if traced.has_open_sizes else traced.problem
    return _runs(problem, traced.call.backends, memory, traced.call.environment)


@functools.lru_cache(maxsize=1024)
def _runs(problem, backends, memory, _environment):
    return any(answer["supported"] for answer in support(problem, backends=backends, memory=memory, level="static"))
