"""Context parallelism: attention inside jax.shard_map over a mesh axis that the sequence is sharded over.

The score functions see the positions of the whole sequence, through the number of the shard that queries and keys come from, which is an operand
of the program. So one compiled attention serves every shard and every step of a ring.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from scoremod.errors import InvalidArgumentError, UnsupportedError
from scoremod.finite_masks import warn_of_finite_masks
from scoremod.jax.attention_primitives import backward, forward
from scoremod.jax.call import Call, dtype_of, split_scale
from scoremod.jax.differentiate import attend
from scoremod.jax.kept_results import named_results
from scoremod.jax.manual_axes import vary_alike
from scoremod.jax.reverse_mode import reverse_mode_only
from scoremod.jax.selection import memory_of, platform_of, selected
from scoremod.jax.trace import trace
from scoremod.sizes import sizes_of

STRATEGIES = ("all_gather", "ring")


def context_parallel_attention(
    query,
    key,
    value,
    score_mod=None,
    mask_mod=None,
    *,
    axis_name,
    strategy="ring",
    striped=False,
    scale=None,
    layout="BSHD",
    backend=None,
    backends=None,
):
    """flex_attention of sequences that are sharded over a mesh axis; called inside jax.shard_map with each shard's part of query, key and value.

    axis_name: the mesh axis. Captured arrays are those of the whole sequence, on every shard.
    strategy: "ring" passes keys and values around, so that no shard ever holds more than two parts of them, forward and backward;
        "all_gather" gathers them.
    striped: which positions a shard has: those that leave its number when divided by the number of shards, instead of the next block of them.
        With a causal mask every shard then has as much to do. stripe() and unstripe() reorder a sequence.
    The rest is flex_attention's.
    """
    if strategy not in STRATEGIES:
        raise InvalidArgumentError(f"strategy: expected one of {', '.join(STRATEGIES)}, found {strategy!r}")
    if backend == "xla":
        raise UnsupportedError(
            'backend: expected one that runs programs, found "xla", which knows no sharded sequences; gather key and value with '
            'jax.lax.all_gather, and call flex_attention(backend="xla") with functions that add the shard\'s first position to q_idx'
        )
    chosen_among = selected(backend, backends)
    sizes = sizes_of(layout, query, key, value)
    dtype_of(query, key, value)
    shards, shard = lax.axis_size(axis_name), lax.axis_index(axis_name).astype(jnp.int32)
    gathered = strategy == "all_gather"
    positions = {
        "q_idx": functools.partial(_position_in_part, sizes.seq_q, shards, striped, "queries"),
        "kv_idx": functools.partial(_position_in_gathered, sizes.seq_kv, shards, striped)
        if gathered
        else functools.partial(_position_in_part, sizes.seq_kv, shards, striped, "keys"),
    }
    whole = {**sizes.axes(), "q_idx": sizes.seq_q * shards, "kv_idx": sizes.seq_kv * shards}
    scale, scale_array = split_scale(scale)
    program, sources = trace(score_mod, mask_mod, whole, scale_array, positions)
    if gathered:
        key, value = (lax.all_gather(x, axis_name, axis=layout.index("S"), tiled=True) for x in (key, value))
    call = Call(program, layout, scale, chosen_among, False)
    places = _Places(*(next((i for i, s in enumerate(sources) if s == _Shard(of)), None) for of in ("queries", "keys")))
    operands = [shard if isinstance(source, _Shard) else source.array() for source in sources]
    memory = memory_of(platform_of(query, key, value))
    warn_of_finite_masks(program, sources, memory if gathered else None, 2)
    query, key, value, *operands = vary_alike([query, key, value, *operands, shard])[:-1]
    if gathered:
        return attend(call, query, key, value, tuple(operands), with_lse=False)
    query, key, value, *operands = reverse_mode_only("context_parallel_attention", query, key, value, *operands)
    return _ring(_Ring(call, axis_name, places), query, key, value, tuple(operands))


def stripe(array, shards, axis):
    """The order in which a sequence is sharded in blocks so that each of `shards` has every shards-th position."""
    return _reorder(array, axis, lambda x: x.reshape(-1, shards, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape))


def unstripe(array, shards, axis):
    """What stripe() was made of."""
    return _reorder(array, axis, lambda x: x.reshape(shards, -1, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape))


def _reorder(array, axis, function):
    return jnp.moveaxis(function(jnp.moveaxis(array, axis, 0)), 0, axis)


class _Shard(NamedTuple):
    """The operand that holds the number of the shard that queries or keys are of."""

    of: str

    def known_array(self):
        return None

    def describe(self):
        return f"number of the shard that {self.of} are of"


class _Places(NamedTuple):
    """Which operands hold a shard's number; None if the program doesn't ask."""

    queries: int | None
    keys: int | None


class _Ring(NamedTuple):
    call: Call
    axis_name: str
    places: _Places


def _position_in_part(length, shards, striped, of, tracer, local):
    """The position of a shard's local index in the whole sequence."""
    builder = tracer.builder
    shard = tracer.operands.call_value(_Shard(of))
    if striped:
        return builder.op("add", builder.op("mul", local, builder.constant(shards, "i32")), shard)
    return builder.op("add", builder.op("mul", shard, builder.constant(length, "i32")), local)


def _position_in_gathered(length, shards, striped, tracer, local):
    if not striped:
        return local
    builder = tracer.builder
    part = builder.constant(length, "i32")
    within = builder.op("mul", builder.op("mod", local, part), builder.constant(shards, "i32"))
    return builder.op("add", within, builder.op("floor_div", local, part))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _ring(ring, q, k, v, operands):
    return _ring_forward(ring, q, k, v, operands, None)[0]


def _ring_forward(ring, q, k, v, operands, wanted):
    """(o, lse) over the keys of all shards: each step adds one part, and passes k and v on."""

    def step(state, number):
        o, lse, k, v = state
        part, part_lse = forward(ring.call, q, k, v, _at_step(ring, operands, number), with_lse=True, wanted=wanted)
        new_lse = jnp.logaddexp(lse, part_lse)
        shift = jnp.where(jnp.isneginf(new_lse), 0, new_lse)  # rows without a kept key so far
        o = o * _as_rows(ring, jnp.exp(lse - shift)) + part.astype(jnp.float32) * _as_rows(ring, jnp.exp(part_lse - shift))
        return (o, new_lse, *_passed_on(ring, k, v)), None

    sizes = sizes_of(ring.call.layout, q, k, v)
    o = jnp.zeros((*q.shape[:-1], sizes.dim_v), jnp.float32)
    lse = jnp.full((sizes.batch, sizes.heads_q, sizes.seq_q), -jnp.inf, jnp.float32)
    state = (*vary_alike([o, lse, q])[:2], k, v)
    (o, lse, _, _), _ = lax.scan(step, state, jnp.arange(lax.axis_size(ring.axis_name), dtype=jnp.int32))
    return o.astype(q.dtype), lse


def _ring_forward_rule(ring, q, k, v, operands):
    o, lse = named_results(*_ring_forward(ring, q, k, v, operands, _wanted(operands)))
    return o, (q, k, v, operands, o, lse)


def _wanted(operands):
    """The numbers of the operands that have a gradient."""
    return tuple(i for i, x in enumerate(operands) if jnp.issubdtype(x.dtype, jnp.floating))


def _ring_backward_rule(ring, residuals, d_o):
    """The probabilities of each part follow from the whole row's lse, so each step is one plain backward call; gradients of k and v go around
    with them and come home with the last step."""
    q, k, v, operands, o, lse = residuals
    wanted = _wanted(operands)

    def step(state, number):
        sums, k, v, dk, dv = state
        given = _at_step(ring, operands, number)
        dq_part, dk_part, dv_part, *d_parts = backward(ring.call, q, k, v, o, lse, d_o, given, wanted=wanted)
        sums = [total + part.astype(jnp.float32) for total, part in zip(sums, [dq_part, *d_parts])]
        dk, dv = dk + dk_part.astype(jnp.float32), dv + dv_part.astype(jnp.float32)
        return (sums, *_passed_on(ring, k, v, dk, dv)), None

    zeros = [jnp.zeros(x.shape, jnp.float32) for x in (q, k, v, *(operands[i] for i in wanted))]
    dq, dk, dv, *totals = vary_alike([*zeros, q])[:-1]
    state = ([dq, *totals], k, v, dk, dv)
    (sums, _, _, dk, dv), _ = lax.scan(step, state, jnp.arange(lax.axis_size(ring.axis_name), dtype=jnp.int32))
    gradients = [None] * len(operands)
    for i, total in zip(wanted, sums[1:]):
        gradients[i] = total.astype(operands[i].dtype)
    return sums[0].astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype), tuple(gradients)


_ring.defvjp(_ring_forward_rule, _ring_backward_rule)


def _at_step(ring, operands, number):
    """The operands of a step, in which the keys are those of the shard `number` places before this one."""
    operands = list(operands)
    if ring.places.keys is not None:
        shards = lax.axis_size(ring.axis_name)
        operands[ring.places.keys] = (lax.axis_index(ring.axis_name).astype(jnp.int32) - number) % shards
    return operands


def _passed_on(ring, *arrays):
    shards = lax.axis_size(ring.axis_name)
    return [lax.ppermute(x, ring.axis_name, [(i, (i + 1) % shards) for i in range(shards)]) for x in arrays]


def _as_rows(ring, weights):
    """[batch, heads, seq_q] as what multiplies o."""
    call = ring.call
    return jnp.moveaxis(weights, (0, 1, 2), (call.axis("B"), call.axis("H"), call.axis("S")))[..., None]
