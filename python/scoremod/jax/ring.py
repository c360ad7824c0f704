"""Attention over the keys of all shards of a mesh axis, which go around a ring: each step adds one part, forward and backward."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from scoremod.jax.attention_primitives import backward, forward
from scoremod.jax.call import Call
from scoremod.jax.differentiate import with_lse_column
from scoremod.jax.dropout import at_places
from scoremod.jax.kept_results import named_results
from scoremod.jax.manual_axes import vary_alike
from scoremod.shard_distance import Shards, at_distance, keeps_nothing
from scoremod.sizes import sizes_of

# With more programs than this for the distances, one that takes the distance as an operand serves all of them.
_MAX_PROGRAMS = 8


class Part(NamedTuple):
    """Attention of one shard's queries to one shard's keys, at some distances."""

    call: Call | None  # None where nothing is kept
    order: tuple  # which operands of the whole call it reads


class Ring(NamedTuple):
    """Everything about a ring but its arrays."""

    call: Call
    axis_name: str
    shards: Shards
    parts: tuple
    part_at: tuple  # the number of the part at distance d is part_at[d + shards.count - 1]
    places: tuple = ()  # with dropout, whose keys are the last operand: Places of queries and of keys

    @classmethod
    def of(cls, call, axis_name, shards, places):
        parts, part_at = {}, []
        for distance in range(1 - shards.count, shards.count):
            program, order = at_distance(call.program, shards, distance)
            part = Part(None, ()) if keeps_nothing(program) else Part(call._replace(program=program), tuple(order))
            part_at.append(parts.setdefault(part, len(parts)))
        if len(parts) > _MAX_PROGRAMS:
            parts, part_at = {Part(call, tuple(range(len(call.program.operands)))): 0}, [0] * len(part_at)
        return cls(call, axis_name, shards, tuple(parts), tuple(part_at), places if call.dropout else ())

    def at_step(self, number, operands, run):
        """run(part, its operands), of the part of a step, in which the keys are those of the shard `number` places before this one. All parts'
        results are alike; operands: those of the whole call, and the keys of its dropout."""
        count = self.shards.count
        shard = lax.axis_index(self.axis_name).astype(jnp.int32)
        distance = shard - (shard - number) % count
        operands = list(operands)
        if self.shards.distance is not None:
            operands[self.shards.distance] = distance
        bound = ()
        if self.places:
            queries, keys = self.places
            operands[-1] = at_places(operands[-1], (queries, shard), (keys, shard - distance))
            bound = (len(operands) - 1,)
        branches = [lambda *operands, part=part: run(part, [operands[i] for i in (*part.order, *bound)]) for part in self.parts]
        if len(branches) == 1:
            return branches[0](*operands)
        return lax.switch(jnp.asarray(self.part_at, jnp.int32)[distance + (count - 1)], branches, *operands)

    def passed_on(self, *arrays):
        count = self.shards.count
        return [lax.ppermute(x, self.axis_name, [(i, (i + 1) % count) for i in range(count)]) for x in arrays]

    def steps(self):
        return jnp.arange(self.shards.count, dtype=jnp.int32)


def ring_attention(ring, q, k, v, operands, *, with_lse):
    """The output, or (output, lse) if with_lse, all differentiable in reverse mode."""
    return (_with_lse if with_lse else _without_lse)(ring, q, k, v, operands)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _without_lse(ring, q, k, v, operands):
    return _forward(ring, q, k, v, operands, None)[0]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _with_lse(ring, q, k, v, operands):
    return _forward(ring, q, k, v, operands, None)


def _forward(ring, q, k, v, operands, wanted):
    """(o, lse) over the keys of all shards."""
    sizes = sizes_of(ring.call.layout, q, k, v)
    nothing = [jnp.zeros((*q.shape[:-1], sizes.dim_v), q.dtype), jnp.full((sizes.batch, sizes.heads_q, sizes.seq_q), -jnp.inf, jnp.float32)]
    nothing = vary_alike([*nothing, q])[:2]

    def step(state, number):
        o, lse, k, v = state

        def run(part, given):
            if part.call is None:
                return nothing
            return forward(part.call, q, k, v, given, with_lse=True, wanted=None if wanted is None else _wanted_of(part, wanted))

        part, part_lse = ring.at_step(number, operands, run)
        new_lse = jnp.logaddexp(lse, part_lse)
        shift = jnp.where(jnp.isneginf(new_lse), 0, new_lse)  # rows without a kept key so far
        o = o * _as_rows(ring, jnp.exp(lse - shift)) + part.astype(jnp.float32) * _as_rows(ring, jnp.exp(part_lse - shift))
        return (o, new_lse, *ring.passed_on(k, v)), None

    (o, lse, _, _), _ = lax.scan(step, (nothing[0].astype(jnp.float32), nothing[1], k, v), ring.steps())
    return o.astype(q.dtype), lse


def _forward_rule(ring, q, k, v, operands):
    o, lse = named_results(*_forward(ring, q, k, v, operands, _wanted(operands)))
    return o, (q, k, v, operands, o, lse)


def _forward_rule_with_lse(ring, q, k, v, operands):
    o, kept = _forward_rule(ring, q, k, v, operands)
    return (o, kept[-1]), kept


def _wanted(operands):
    """The numbers of the operands that have a gradient."""
    return tuple(i for i, x in enumerate(operands) if jnp.issubdtype(x.dtype, jnp.floating))


def _wanted_of(part, wanted):
    """Their numbers among the part's own."""
    return tuple(at for at, i in enumerate(part.order) if i in wanted)


def _backward_rule(ring, kept, d_o):
    return _backward(ring, kept, d_o, None)


def _backward_rule_with_lse(ring, kept, upstream):
    return _backward(ring, kept, *upstream)


def _backward(ring, kept, d_o, d_lse):
    """The probabilities of each part follow from the whole row's lse, so each step is one plain backward call; gradients of k and v go around
    with them and come home with the last step."""
    q, k, v, operands, o, lse = kept
    wanted = _wanted(operands)
    dim_v = v.shape[-1]
    nothing = vary_alike([*(jnp.zeros(x.shape, x.dtype) for x in (q, k, v, *(operands[i] for i in wanted))), q])[:-1]

    def step(state, number):
        sums, k, v, dk, dv = state

        def run(part, given):
            if part.call is None:
                return nothing
            tensors = (v, o, d_o) if d_lse is None else with_lse_column(part.call, v, o, d_o, d_lse)
            own = _wanted_of(part, wanted)
            # o and lse are the whole row's, not the part's.
            call = part.call._replace(given_deltas=True)
            dq, dk, dv, *gradients = backward(call, q, k, tensors[0], tensors[1], lse, tensors[2], given, wanted=own)
            by_number = {part.order[at]: gradient for at, gradient in zip(own, gradients)}
            return [dq, dk, dv[..., :dim_v], *(by_number.get(i, zero) for i, zero in zip(wanted, nothing[3:]))]

        dq_part, dk_part, dv_part, *d_parts = ring.at_step(number, operands, run)
        sums = [total + part.astype(jnp.float32) for total, part in zip(sums, [dq_part, *d_parts])]
        dk, dv = dk + dk_part.astype(jnp.float32), dv + dv_part.astype(jnp.float32)
        return (sums, *ring.passed_on(k, v, dk, dv)), None

    dq, dk, dv, *totals = (x.astype(jnp.float32) for x in nothing)
    (sums, _, _, dk, dv), _ = lax.scan(step, ([dq, *totals], k, v, dk, dv), ring.steps())
    gradients = [None] * len(operands)
    for i, total in zip(wanted, sums[1:]):
        gradients[i] = total.astype(operands[i].dtype)
    return sums[0].astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype), tuple(gradients)


_without_lse.defvjp(_forward_rule, _backward_rule)
_with_lse.defvjp(_forward_rule_with_lse, _backward_rule_with_lse)


def _as_rows(ring, weights):
    """[batch, heads, seq_q] as what multiplies o."""
    return ring.call.as_rows(weights)
