"""Context parallelism: attention inside jax.shard_map over a mesh axis that the sequence is sharded over.

The score functions see positions of the whole sequence. They get them from two operands of the program: the number of the queries' shard,
and its distance to the keys' shard. One compiled attention could serve every shard and every step of a ring, but its masks would depend on
operands. A step has only two distances, one of them for keys that have passed the ring's end. So each known distance has a program of its
own, with a plain mask: a band, nothing or all (scoremod.shard_distance). Equal programs of several distances are one.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from scoremod.call_spec import CallSpec, checked
from scoremod.callback_arguments import AtLeast, Callbacks
from scoremod.errors import InvalidArgumentError, UnsupportedError
from scoremod.finite_masks import warn_of_finite_masks
from scoremod.jax.arrays import tensors
from scoremod.jax.call import Call, dtype_of, problem_text, split_scale
from scoremod.jax.differentiate import attend
from scoremod.jax.deals import Deal, OfArrays, OfNodes, stripe, unstripe
from scoremod.jax.dropout import PLACED_WORDS, WHOLE, at_places, call_keys, with_float32_rate
from scoremod.jax.kept_programs import warn_of_kept_programs
from scoremod.jax.fallbacks import warn_of_xla
from scoremod.jax.lengths_and_sinks import bounded, checked_sink, with_sink
from scoremod.jax.fused_attention import graph_modifier
from scoremod.jax.manual_axes import vary_alike
from scoremod.jax.reverse_mode import reverse_mode_only
from scoremod.jax.ring import Ring, ring_attention
from scoremod.jax.open_sizes import check_numbers
from scoremod.jax.sequences import Sequences
from scoremod.jax.selection import ON_XLA, check_fallback, chosen_backends, compiled, memory_of, platform_of
from scoremod.jax.trace import trace
from scoremod.jax.xla_attention import xla_attention
from scoremod.program import AXES
from scoremod.shard_distance import Shards
from scoremod.signatures import Backends, Layout, Modifier, NewSizes
from scoremod.sizes import sizes_of

__all__ = ("context_parallel_attention", "stripe", "unstripe")

RING, ALL_GATHER = "ring", "all_gather"
STRATEGIES = (ALL_GATHER, RING)


def context_parallel_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    score_mod: Modifier | None = None,
    mask_mod: Modifier | None = None,
    *,
    axis_name: str,
    score_mod_bprop: Modifier | None = None,
    score_mod_tensors: Mapping[str, ArrayLike] | None = None,
    score_mod_bprop_tensors: Mapping[str, ArrayLike] | None = None,
    trust_bprop: bool = False,
    strategy: Literal["ring", "all_gather"] = "ring",
    striped: bool | int | Literal["dual_chunk_swap"] = False,
    scale: ArrayLike | None = None,
    layout: Layout | Literal["THD"] = "BSHD",
    q_offsets: ArrayLike | None = None,
    kv_offsets: ArrayLike | None = None,
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
    return_lse: bool = False,
    lengths: ArrayLike | None = None,
    sink: ArrayLike | None = None,
    backend: str | None = None,
    backends: Backends = None,
    new_sizes: NewSizes = None,
    fallback: Literal["xla"] | None = None,
) -> Any:
    """flex_attention of sequences that are sharded over a mesh axis, called inside jax.shard_map.

    Parameters
    ----------
    query, key, value : array
        This shard's part of the sequences. Captured arrays are those of the whole sequence, on every shard.
    axis_name : str
        The mesh axis that the sequences are sharded over.
    score_mod_bprop, score_mod_tensors, score_mod_bprop_tensors, trust_bprop
        fused_attention's. With any of them, such as empty score_mod_tensors, score_mod is a callback that builds on a graph. The tensors are those of
        the whole sequence, on every shard: they broadcast against [batch, heads, whole seq_q, whole seq_kv].
    strategy : {"ring", "all_gather"}
        "ring" passes keys and values around: no shard ever holds more than two parts of them beside its own, forward and backward. "all_gather"
        gathers them, as backend="xla" and fallback="xla" always do.
    striped : bool, int or "dual_chunk_swap"
        Which positions a shard has: the next block of them without it. A number of tokens deals them out in stripes of so many, in turn; True is
        1. With "dual_chunk_swap" shard r of n has chunks r and 2 * n - 1 - r of 2 * n. With a causal mask every shard then has as much to do.
        stripe() and unstripe() reorder a sequence.
    dropout_key : key of jax.random, optional
        One for all shards. flex_attention of the whole sequence drops the same weights.
    lengths : integer array [batch], optional
        The lengths of the whole sequences, on every shard.
    q_offsets, kv_offsets : integer array [batch + 1], optional
        Varlen sequences, with layout="THD": this shard's tokens are its part of those of all sequences, [tokens / shards, heads, dim]. The offsets
        count all tokens, and are the same on every shard; a sequence may lie on several. The functions see b and positions as flex_attention's do.
    score_mod, mask_mod, scale, layout, dropout_rate, return_lse, sink, backend, backends, new_sizes, fallback
        flex_attention's.

    Returns
    -------
    array or (array, array)
        The output of this shard's queries, or (output, LSE) with return_lse. The LSE is [batch, heads, seq], or [tokens, heads] with q_offsets.

    Raises
    ------
    InvalidArgumentError
        For arguments that don't fit.
    UnsupportedError
        For functions that can't be expressed, and for calls that no backend can run.
    """
    if strategy not in STRATEGIES:
        raise InvalidArgumentError(f"strategy: expected one of {', '.join(STRATEGIES)}, found {strategy!r}")
    check_fallback(fallback)
    query, key, value = tensors(query, key, value)
    check_numbers("context_parallel_attention", query, key, value)
    shards = _shards_over(axis_name)
    sequences = _sequences(query, key, value, q_offsets, kv_offsets, layout, shards, dropout_rate)
    if sequences is not None:
        query, key, value, layout = query[None], key[None], value[None], "BSHD"
    sizes = sizes_of(layout, query, key, value)
    deal = Deal.of(shards, sizes, striped)
    callbacks = Callbacks(score_mod_bprop, score_mod_tensors, score_mod_bprop_tensors, trust_bprop)
    if callbacks.are_given():
        whole = deal.whole(sizes)
        of_scores = (sequences.batch, sizes.heads_q, *map(AtLeast, sequences.longest())) if sequences else tuple(whole[axis] for axis in AXES)
        score_mod = graph_modifier(of_scores, score_mod, **callbacks._asdict())
    if lengths is not None:
        mask_mod = bounded(mask_mod, lengths, sequences.batch if sequences else sizes.batch)
    if sequences is not None:
        score_mod, mask_mod = sequences.score_mod(score_mod), sequences.mask_mod(mask_mod)
    if sink is not None:
        sink = checked_sink(sink, sizes.heads_q)
    number, array = split_scale(scale)
    given = CallSpec(scale=number, backends=chosen_backends(backend, backends), new_sizes=new_sizes, dropout=dropout_rate)
    spec = with_float32_rate(checked(given))
    dropout = [call_keys(dropout_key, jnp.arange(sizes.batch, dtype=jnp.int32))] if spec.dropout else []
    results = _attention(
        query, key, value, score_mod, mask_mod, deal, sizes, spec, array, layout, dropout, sink, bool(return_lse), strategy, fallback, axis_name
    )
    if sequences is None:
        return results
    return (results[0][0], results[1][0].T) if return_lse else results[0]


def _sequences(query, key, value, q_offsets, kv_offsets, layout, shards, dropout_rate):
    """The Sequences of all shards' tokens; None for dense tensors."""
    if q_offsets is None and kv_offsets is None:
        if layout == "THD":
            raise InvalidArgumentError('q_offsets: expected them beside layout="THD", found none; give the offsets of all tokens')
        return None
    if dropout_rate:
        raise UnsupportedError(
            "dropout_rate: expected none beside q_offsets in context parallelism, found one: what is dropped follows from places in sequences, which a "
            "shard of packed tokens has none of. Pad the sequences, with lengths="
        )
    query, key, value = (jax.ShapeDtypeStruct((shards * x.shape[0], *x.shape[1:]) if x.ndim else (), x.dtype) for x in (query, key, value))
    return Sequences(query, key, value, q_offsets, kv_offsets, layout)


def _attention(query, key, value, score_mod, mask_mod, deal, sizes, spec, scale, layout, dropout, sink, return_lse, strategy, fallback, axis_name):
    """The output of dense arrays, or (output, LSE); called by context_parallel_attention, to whose caller warnings point."""
    with_lse = return_lse or sink is not None
    shard = lax.axis_index(axis_name).astype(jnp.int32)
    gather = functools.partial(deal.gathered, axis_name=axis_name, axis=layout.index("S"))
    if spec.backends != ON_XLA:
        try:
            dtype_of(query, key, value)
            part = _traced(score_mod, mask_mod, (query, key, value), deal, strategy, spec, scale, layout, sizes, axis_name)
            platform = platform_of(query, key, value)
            memory = memory_of(platform)
            if fallback is not None:
                part.check_runs(query, key, value, platform)
        except UnsupportedError as error:
            if fallback is None:
                raise
            warn_of_xla(error, 3)
        else:
            warn_of_finite_masks(part.call.program, part.sources, memory if part.ring is None else None, 3)
            operands = [shard if isinstance(source, _Shard) else source.array() for source in part.sources]
            if part.ring is None:
                key, value = gather(key), gather(value)
                operands += [at_places(keys, (deal.places(deal.queries, shard), shard), (WHOLE, 0)) if part.call.dropout_places else keys for keys in dropout]
            else:
                warn_of_kept_programs(platform, 3)
                operands += dropout
            sinks = [] if sink is None else [sink]
            query, key, value, *operands = vary_alike([query, key, value, *operands, *sinks, shard])[:-1]
            if part.ring is not None:
                query, key, value, *operands = reverse_mode_only("context_parallel_attention", query, key, value, *operands)
            sink = operands.pop() if sinks else None
            if part.ring is not None:
                return ring_attention(part.ring, query, key, value, tuple(operands), sink, with_lse=return_lse)
            results = attend(part.call, query, key, value, tuple(operands), with_lse=with_lse)
            return _with_sink(*(results if with_lse else (results, None)), sink, layout, return_lse)  # pyright: ignore[reportCallIssue]
    else:
        _check_captured(score_mod, mask_mod, (query, key, value), deal, scale, layout, sizes, axis_name)
    dtype_of(query, key, value, on_xla=True)
    functions = (deal.at_positions(score_mod, shard, 3), deal.at_positions(mask_mod, shard, 2))
    if dropout:
        queries = jnp.arange(deal.queries, dtype=jnp.int32)
        of_keys = jnp.arange(deal.keys * deal.shards, dtype=jnp.int32)
        dropout = [jnp.zeros_like(queries), deal.position(OfArrays, deal.queries, shard, queries), of_keys, *dropout]
    query, key, value, _ = vary_alike([query, gather(key), gather(value), shard])
    scale = spec.scale if scale is None else scale
    o, lse, _ = xla_attention(query, key, value, *functions, scale=scale, layout=layout, dropout=(spec.dropout, dropout))
    return _with_sink(o, lse, sink, layout, return_lse)


def _shards_over(axis_name):
    try:
        return lax.axis_size(axis_name)
    except NameError:
        raise InvalidArgumentError(
            f"axis_name: expected an axis of the mesh over which a jax.shard_map around context_parallel_attention shards the sequence, found {axis_name!r}, "
            "which none has; call it in the function that jax.shard_map takes, with axis_name among the names of in_specs"
        ) from None


def _check_captured(score_mod, mask_mod, arrays, deal, scale, layout, sizes, axis_name):
    """Raises InvalidArgumentError for a captured array that is too short for the whole sequence, as far as the functions can be traced to programs."""
    # Functions of such arrays may have numbers that programs have not.
    if arrays[0].dtype == jnp.float64:
        return
    try:
        _traced(score_mod, mask_mod, arrays, deal, ALL_GATHER, CallSpec(), scale, layout, sizes, axis_name)
    except UnsupportedError:
        pass


def _with_sink(o, lse, sink, layout, return_lse):
    """(o, lse) or o for the caller, with the sink, which (o, lse) over all keys don't include yet."""
    if sink is not None:
        o, lse = with_sink(o, lse, sink, layout)
    return (o, lse) if return_lse else o


class _Shard(NamedTuple):
    """The operand that holds the number of the queries' shard, or how much larger it is than the keys'."""

    of: str

    def known_array(self):
        return None

    def describe(self):
        return {"queries": "number of the queries' shard", "distance": "the queries' shard's number less the keys'"}[self.of]


class _Traced(NamedTuple):
    """A call that the functions were traced to."""

    call: Call
    sources: list[Any]
    ring: Ring | None  # None where keys are gathered, and of one shard
    deal: Deal

    def check_runs(self, query, key, value, platform):
        """Raises UnsupportedError where a backend can't run a part."""
        arrays = [jax.eval_shape(source.array) if not isinstance(source, _Shard) else _INDEX for source in self.sources]
        keys = [jax.ShapeDtypeStruct((query.shape[self.call.axis("B")], PLACED_WORDS), jnp.int32)] if self.call.dropout else []
        chunks, shards = (1, self.deal.shards) if self.ring is None else (self.deal.chunks, 1)
        at = self.call.axis("S")
        sized = lambda x, length: jax.ShapeDtypeStruct((*x.shape[:at], length, *x.shape[at + 1 :]), x.dtype)  # noqa: E731
        query, key, value = (sized(x, shards_of * x.shape[at] // chunks) for x, shards_of in ((query, 1), (key, shards), (value, shards)))
        parts = [(self.call, range(len(arrays)))] if self.ring is None else [part for part in self.ring.parts if part.call is not None]
        for call, order in parts:
            problem = problem_text(call, query, key, value, [*(arrays[i] for i in order), *keys], backward=False, stats=True)
            compiled(problem, call, platform)


_INDEX = jax.ShapeDtypeStruct((), jnp.int32)


def _traced(score_mod, mask_mod, arrays, deal, strategy, spec, scale, layout, sizes, axis_name):
    dealt = deal.of_chunks() if strategy == RING else deal  # a ring's parts are of two chunks

    def query_position(tracer, local):
        return dealt.position(OfNodes(tracer.builder), dealt.queries, tracer.operands.call_value(_Shard("queries")), local)

    def key_position(tracer, local):
        shard, distance = (tracer.operands.call_value(_Shard(of)) for of in ("queries", "distance"))
        return dealt.position(OfNodes(tracer.builder), dealt.keys, tracer.builder.op("sub", shard, distance), local)

    alone = deal.shards == 1  # whose local indices are positions: the call is flex_attention's
    positions = {} if alone else {"q_idx": query_position} | ({} if strategy == ALL_GATHER else {"kv_idx": key_position})
    program, sources = trace(score_mod, mask_mod, deal.whole(sizes), scale, positions, like=arrays)
    call = Call.of(program, layout, spec, dropout_places=spec.dropout > 0 and not alone)
    if alone or strategy == ALL_GATHER:
        return _Traced(call, sources, None, deal)
    places = (next((i for i, source in enumerate(sources) if source == _Shard(of)), None) for of in ("queries", "distance"))
    shards = Shards(*places, dealt.shards, (dealt.queries, dealt.keys))  # pyright: ignore[reportCallIssue]
    of_indices = dealt.places(dealt.queries, None), dealt.places(dealt.keys, None)
    return _Traced(call, sources, Ring.of(call, axis_name, shards, of_indices, deal.chunks), deal)
