"""Several sequences in one row of a batch: which of them each position belongs to, and where it stands in its own."""

import jax
import jax.numpy as jnp
import numpy as np

from scoremod.errors import InvalidArgumentError
from scoremod.jax.arrays import host_numbers

# The offset of a sequence that is none: beyond every position.
_NONE = np.iinfo(np.int32).max


def ids_and_positions(lengths, offsets, size):
    """(ids, positions), integer arrays [batch, size], of sequences that begin at offsets [batch, sequences or one more] and have lengths
    [batch, sequences]. Sequences of a length or an offset below 1 or 0 are none. Positions in no sequence have id 0; ids begin at 1."""
    _check(lengths, offsets, size)
    lengths = jnp.asarray(lengths, jnp.int32)
    first = jnp.asarray(offsets, jnp.int32)[:, : lengths.shape[1]]
    first = jnp.where((lengths > 0) & (first >= 0), first, _NONE)
    order = jnp.argsort(first, axis=1)
    places = jnp.arange(size, dtype=jnp.int32)

    def of_row(first, lengths, order):
        rank = jnp.searchsorted(first[order], places, side="right").astype(jnp.int32) - 1
        sequence = order[jnp.maximum(rank, 0)].astype(jnp.int32)
        position = places - first[sequence]
        inside = (rank >= 0) & (position < lengths[sequence])
        return jnp.where(inside, sequence + 1, 0), jnp.where(inside, position, 0)

    return jax.vmap(of_row)(first, lengths, order)


def before_end(ids, positions):
    """Positions [batch, size] that are counted from the ends of their sequences, which have position 0, backwards. positions: those from the
    beginnings; None where positions of one id follow one another in the row."""

    def of_row(ids):
        order = jnp.argsort(ids, stable=True)
        ordered = ids[order]
        begin, end = (jnp.searchsorted(ordered, ids, side=side).astype(jnp.int32) for side in ("left", "right"))
        rank = jnp.zeros_like(begin).at[order].set(jnp.arange(ids.shape[0], dtype=jnp.int32))
        return rank - begin, end - begin

    ranks, counts = jax.vmap(of_row)(ids)
    return (ranks if positions is None else positions.astype(jnp.int32)) + 1 - counts


def _check(lengths, offsets, size):
    """Raises InvalidArgumentError for shapes that don't fit, and for numbers that the host knows and that are beyond the row or overlap."""
    shape, of_offsets = jnp.shape(lengths), jnp.shape(offsets)
    if len(shape) != 2 or of_offsets not in (shape, (shape[0], shape[1] + 1)):
        raise InvalidArgumentError(
            "sequence_descriptor: expected lengths [batch, sequences] and offsets [batch, sequences + 1], found "
            f"shapes {shape} and {of_offsets}; for one sequence in each row give SequenceDescriptor.from_seqlens(lengths)"
        )
    known_lengths, known_offsets = host_numbers(lengths), host_numbers(offsets)
    if known_lengths is None or known_offsets is None:
        return
    for b, (row, first) in enumerate(zip(known_lengths, known_offsets)):
        there = sorted((int(o), int(n)) for o, n in zip(first, row) if n > 0 and o >= 0)
        ends = [o + n for o, n in there]
        if (ends and max(ends) > size) or any(end > o for end, (o, _) in zip(ends, there[1:])):
            raise InvalidArgumentError(
                f"sequence_descriptor: expected sequences within {size} positions that don't overlap, found lengths {row} at offsets {first} in row {b}"
            )
