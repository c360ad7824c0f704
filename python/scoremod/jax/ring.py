"""Attention over the keys of all shards of a mesh axis, which go around a ring: each step adds one part, forward and backward."""

import functools
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero

from scoremod.jax.attention_primitives import backward, forward
from scoremod.jax.call import Call
from scoremod.jax.differentiate import Wanted, instantiated, wanted_operands, with_lse_columns
from scoremod.jax.dropout import at_places
from scoremod.jax.kept_results import named_results
from scoremod.jax.lengths_and_sinks import with_sink
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
    chunks: int = 1  # of each device: with 2 the shards are chunks, of which device r has chunk r and the one with as many after it as r has before

    @classmethod
    def of(cls, call, axis_name, shards, places, chunks=1):
        parts, part_at = {}, []
        for distance in range(1 - shards.count, shards.count):
            program, order = at_distance(call.program, shards, distance)
            part = Part(None, ()) if keeps_nothing(program) else Part(call._replace(program=program), tuple(order))
            part_at.append(parts.setdefault(part, len(parts)))
        if len(parts) > _MAX_PROGRAMS:
            parts, part_at = {Part(call, tuple(range(len(call.program.operands)))): 0}, [0] * len(part_at)
        return cls(call, axis_name, shards, tuple(parts), tuple(part_at), places if call.dropout else (), chunks)

    @property
    def devices(self):
        return self.shards.count // self.chunks

    def pairs(self, number):
        """The pairs of a chunk of the queries and one of the keys, of which something may be kept in a step, each with the numbers of its parts."""
        pairs = [(chunks, self._possible(number, chunks)) for chunks in itertools.product(range(self.chunks), repeat=2)]
        return [(chunks, possible) for chunks, possible in pairs if any(self.parts[i].call is not None for i in possible)]

    def split(self, *arrays):
        """The chunks of each array of tokens."""
        return [_split(x, self.chunks, self.call.axis("S")) for x in arrays]

    def split_rows(self, rows):
        """The chunks of an array of an LSE's shape."""
        return [None] * self.chunks if rows is None else _split(rows, self.chunks, 2)

    def at_step(self, number, chunks, possible, operands, run):
        """run(part, its operands), of a part of a step, in which the keys are those of the device `number` places before this one. chunks: that of
        the queries and that of the keys; possible: the numbers of their parts. All parts' results are alike; operands: those of the whole call, and
        the keys of its dropout."""
        device = lax.axis_index(self.axis_name).astype(jnp.int32)
        shard, of_keys = self._shard_of(device, chunks[0]), self._shard_of((device - number) % self.devices, chunks[1])
        distance = shard - of_keys
        operands = list(operands)
        for at, value in ((self.shards.shard, shard), (self.shards.distance, distance)):
            if at is not None:
                operands[at] = value
        bound = ()
        if self.places:
            queries, keys = self.places
            operands[-1] = at_places(operands[-1], (queries, shard), (keys, of_keys))
            bound = (len(operands) - 1,)
        branches = [lambda *operands, part=part: run(part, [operands[i] for i in (*part.order, *bound)]) for part in self.parts]
        if len(possible) == 1:
            return branches[possible[0]](*operands)
        branch_at = [possible.index(part) if part in possible else 0 for part in self.part_at]
        return lax.switch(jnp.asarray(branch_at, jnp.int32)[distance + (self.shards.count - 1)], [branches[i] for i in possible], *operands)

    def _shard_of(self, device, chunk):
        return self.shards.count - 1 - device if chunk else device

    def _possible(self, number, chunks):
        """The numbers of the parts that a step, or any step of a loop, may have on some device."""
        numbers = [number] if isinstance(number, int) else range(1, self.devices)
        steps = itertools.product(range(self.devices), numbers)
        distances = {self._shard_of(device, chunks[0]) - self._shard_of((device - step) % self.devices, chunks[1]) for device, step in steps}
        return sorted({self.part_at[distance + self.shards.count - 1] for distance in distances})

    def passed_on(self, *arrays):
        count = self.devices
        return [lax.ppermute(x, self.axis_name, [(i, (i + 1) % count) for i in range(count)]) for x in arrays]

    def between(self, first, step, state):
        """The state after all steps from the first of these to the one before the last, as one loop of state = step(state, number)."""
        numbers = jnp.arange(first, self.devices - 1, dtype=jnp.int32)
        return state if numbers.size == 0 else lax.scan(lambda state, number: (step(state, number), None), state, numbers)[0]


def ring_attention(ring, q, k, v, operands, sink, *, with_lse):
    """The output, or (output, lse) if with_lse, all differentiable in reverse mode; the ring is of several shards. sink: [heads], or None."""
    return _JITTED[_with_lse if with_lse else _without_lse](ring, q, k, v, operands, sink)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _without_lse(ring, q, k, v, operands, sink):
    return _forward(ring, q, k, v, operands, sink, None)[0]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _with_lse(ring, q, k, v, operands, sink):
    return _forward(ring, q, k, v, operands, sink, None)


def _forward(ring, q, k, v, operands, sink, wanted):
    """(o, lse) over the keys of all shards. Keys and values are passed on while attention to them is computed."""
    sizes = sizes_of(ring.call.layout, q, k, v)
    (queries,) = ring.split(q)
    rows = (sizes.batch, sizes.heads_q, sizes.seq_q // ring.chunks)
    nothing = [jnp.zeros((*queries[0].shape[:-1], sizes.dim_v), q.dtype), jnp.full(rows, -jnp.inf, jnp.float32)]
    nothing = vary_alike([*nothing, q])[:2]

    def part_of(number, k, v):
        keys, values = ring.split(k, v)
        found = [[] for _ in queries]
        for chunks, possible in ring.pairs(number):
            of_queries, of_keys = chunks

            def run(part, given, q=queries[of_queries], k=keys[of_keys], v=values[of_keys]):
                if part.call is None:
                    return nothing
                return forward(part.call, q, k, v, given, with_lse=True, wanted=None if wanted is None else _wanted_of(part, wanted))

            found[of_queries].append(ring.at_step(number, chunks, possible, operands, run))
        return _joined(ring, [_all_merged(ring, parts) if parts else nothing for parts in found])

    def step(state, number):
        o, lse, k, v = state
        following = ring.passed_on(k, v)
        return *_merged(ring, o, lse, *part_of(number, k, v)), *following

    following = ring.passed_on(k, v)
    o, lse = part_of(0, k, v)
    o, lse, k, v = ring.between(1, step, (o.astype(jnp.float32), lse, *following))
    o, lse = _merged(ring, o, lse, *part_of(ring.devices - 1, k, v))
    if sink is not None:  # as a key whose value is 0, before the output is rounded
        o, lse = with_sink(o, lse, sink, ring.call.layout)
    return o.astype(q.dtype), lse


def _split(array, chunks, axis):
    return [array] if chunks == 1 else jnp.split(array, chunks, axis)


def _joined(ring, results):
    """(o, lse) of a shard, of those of its chunks."""
    if len(results) == 1:
        return results[0]
    outputs, rows = zip(*results)
    return jnp.concatenate([o.astype(jnp.float32) for o in outputs], ring.call.axis("S")), jnp.concatenate(rows, 2)


def _all_merged(ring, parts):
    """(o, lse) of the softmax over the keys of all parts."""
    (o, lse), *others = parts
    for other in others:
        o, lse = _merged(ring, o.astype(jnp.float32), lse, *other)
    return o, lse


def _merged(ring, o, lse, part, part_lse):
    """(o, lse) of the softmax over both sets of keys, o in float32."""
    new_lse = jnp.logaddexp(lse, part_lse)
    shift = jnp.where(jnp.isneginf(new_lse), 0, new_lse)  # rows without a kept key so far
    weight, part_weight = (_as_rows(ring, jnp.exp(each - shift)) for each in (lse, part_lse))
    return o * weight + part.astype(jnp.float32) * part_weight, new_lse


def _run_forward(ring, q, k, v, operands, sink):
    """(o, lse) and what the backward pass keeps, of arguments that say which of them are differentiated."""
    wanted = wanted_operands(operands)
    q, k, v, operands = q.value, k.value, v.value, tuple(x.value for x in operands)
    sink = None if sink is None else sink.value
    o, lse = named_results(ring.call.second_name, *_forward(ring, q, k, v, operands, sink, wanted))
    return (o, lse), (q, k, v, operands, sink, o, lse, Wanted(wanted))


def _forward_rule(ring, q, k, v, operands, sink):
    results, kept = _run_forward(ring, q, k, v, operands, sink)
    return results[0], kept


def _wanted_of(part, wanted):
    """Their numbers among the part's own."""
    return tuple(at for at, i in enumerate(part.order) if i in wanted)


def _backward_rule(ring, kept, d_o):
    return _backward(ring, kept, instantiated(d_o), None)


def _backward_rule_with_lse(ring, kept, upstream):
    d_o, d_lse = upstream
    return _backward(ring, kept, instantiated(d_o), None if isinstance(d_lse, SymbolicZero) else d_lse)


def _backward(ring, kept, d_o, d_lse):
    """The probabilities of each part follow from the whole row's lse, so each step is one plain backward call. Gradients of k and v go around with
    them, a step behind, so that they are on their way while the next part is computed. The own part comes last: its gradients stay here, and those
    that the other shards have added up come home meanwhile."""
    q, k, v, operands, sink, o, lse, wanted = kept
    count = ring.devices
    d_sink = None if sink is None else _sink_gradient(ring, sink, o, lse, d_o, d_lse)
    part_of = functools.partial(_part_gradients, ring, (q, o, d_o, d_lse), operands, wanted.numbers)

    def step(state, number):
        sums, k, v, *traveling = state
        following, arrived = ring.passed_on(k, v), ring.passed_on(*traveling)
        of_keys, others = part_of(number, lse, k, v)
        return _sums(sums, others), *following, *_sums(arrived, of_keys)

    here = ring.passed_on(k, v)
    following = ring.passed_on(*here) if count > 2 else None
    traveling, sums = part_of(1, lse, *here)
    if count > 2:  # what a loop carries has one dtype
        state = _widened(sums), *following, *_widened(traveling)  # pyright: ignore[reportOptionalIterable]
        sums, *here, d_k, d_v = ring.between(2, step, state)
        arrived = ring.passed_on(d_k, d_v)
        of_keys, others = part_of(count - 1, lse, *here)
        sums, traveling = _sums(sums, others), _sums(arrived, of_keys)
    # Nothing of the own part depends on the others, so XLA might compute it first and then wait for what comes home.
    lse, *traveling = lax.optimization_barrier((lse, *traveling))
    at_home = ring.passed_on(*traveling)
    of_keys, others = part_of(0, lse, k, v)
    d_q, *of_operands = _sums(sums, others)
    d_k, d_v = _sums(at_home, of_keys)
    gradients = [None] * len(operands)
    for i, total in zip(wanted.numbers, of_operands):
        gradients[i] = total.astype(operands[i].dtype)
    return d_q.astype(q.dtype), d_k.astype(k.dtype), d_v.astype(v.dtype), tuple(gradients), d_sink


def _sink_gradient(ring, sink, o, lse, d_o, d_lse):
    """That of the sink of each head, of which each row's sum has a term."""
    sink_of_rows = sink.astype(lse.dtype)[:, None]
    weights = jnp.where(jnp.isposinf(sink_of_rows), 1, jnp.exp(sink_of_rows - jnp.where(jnp.isneginf(lse), jnp.inf, lse)))
    of_rows = -jnp.moveaxis((d_o.astype(lse.dtype) * o.astype(lse.dtype)).sum(axis=-1), [ring.call.axis(letter) for letter in "BHS"], range(3))
    return (weights * (of_rows if d_lse is None else of_rows + d_lse)).sum(axis=(0, 2)).astype(sink.dtype)


def _part_gradients(ring, rows, operands, wanted, number, lse, k, v):
    """([dk, dv], [dq, the wanted operands' gradients]) of a step. rows: what there is of each query, q, o, d_o and d_lse, which may be None."""
    q, o, d_o, d_lse = rows
    dim_v, axis = v.shape[-1], ring.call.axis("S")
    of_queries = list(zip(*ring.split(q, o, d_o), *map(ring.split_rows, (d_lse, lse))))
    of_keys = list(zip(*ring.split(k, v)))
    like = (of_queries[0][0], *of_keys[0], *(operands[i] for i in wanted))
    nothing = vary_alike([*(jnp.zeros(x.shape, x.dtype) for x in like), q])[:-1]

    def gradients_of(rows, tokens):
        q, o, d_o, d_lse, lse = rows
        k, v = tokens

        def run(part, given):
            if part.call is None:
                return nothing
            tensors = (v, o, d_o) if d_lse is None else with_lse_columns(part.call, v, o, d_o, d_lse)
            own = _wanted_of(part, wanted)
            # o and lse are the whole row's, not the part's.
            call = part.call._replace(given_deltas=True)
            dq, dk, dv, *gradients = backward(call, q, k, tensors[0], tensors[1], lse, tensors[2], given, wanted=own)
            by_number = {part.order[at]: gradient for at, gradient in zip(own, gradients)}
            return [dq, dk, dv[..., :dim_v], *(by_number.get(i, zero) for i, zero in zip(wanted, nothing[3:]))]

        return run

    found = []
    for chunks, possible in ring.pairs(number):
        at_query, at_key = chunks
        found.append((chunks, ring.at_step(number, chunks, possible, operands, gradients_of(of_queries[at_query], of_keys[at_key]))))

    def of_chunks(at, side):
        """The gradient of queries, keys or values, of all chunks."""
        sums = [_summed([each[at] for chunks, each in found if chunks[side] == chunk], nothing[at]) for chunk in range(ring.chunks)]
        return sums[0] if len(sums) == 1 else jnp.concatenate(_widened(sums), axis)

    of_operands = [_summed([each[3 + at] for _, each in found], zero) for at, zero in enumerate(nothing[3:])]
    return [of_chunks(1, 1), of_chunks(2, 1)], [of_chunks(0, 0), *of_operands]


def _summed(parts, nothing):
    """The sum of the parts of a gradient, in float32 unless it is one part's."""
    return functools.reduce(lambda x, y: _sums([x], [y])[0], parts) if parts else nothing


def _widened(arrays):
    return [x.astype(jnp.float32) for x in arrays]


def _sums(arrays, others):
    return [x + y for x, y in zip(_widened(arrays), _widened(others))]


_without_lse.defvjp(_forward_rule, _backward_rule, symbolic_zeros=True)
_with_lse.defvjp(_run_forward, _backward_rule_with_lse, symbolic_zeros=True)
# Inside jax.shard_map without jax.jit, JAX takes no rule that asks which gradients are wanted.
_JITTED = {compute: jax.jit(compute, static_argnums=0) for compute in (_without_lse, _with_lse)}


def _as_rows(ring, weights):
    """[batch, heads, seq_q] as what multiplies o."""
    return ring.call.as_rows(weights)
