"""Which positions of a sequence each shard has: a block, stripes in turn, or the chunks of the order DUAL_CHUNK_SWAP."""

from __future__ import annotations

import functools
import math
import operator
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from scoremod.errors import InvalidArgumentError
from scoremod.jax.dropout import Places
from scoremod.shard_distance import CHUNKS, check_order, check_stripes, chunks_of


def stripe(array: ArrayLike, shards: int, axis: int, tokens: int | Literal["dual_chunk_swap"] = 1) -> jax.Array:
    """A sequence in the order in which context_parallel_attention(striped=tokens) deals it out: its blocks are the shards.

    Each of `shards` blocks has stripes of so many tokens in turn. With "dual_chunk_swap" block r has chunks r and 2 * shards - 1 - r of
    2 * shards chunks of one length.

    Parameters
    ----------
    array : array
        Of any shape and dtype.
    shards : int
        The number of shards along the mesh's axis.
    axis : int
        The dimension of the sequence, whose length is a multiple of shards * tokens, or of 2 * shards with "dual_chunk_swap".
    tokens : int or "dual_chunk_swap"
        The tokens of a stripe, or the name of the order.

    Returns
    -------
    array
        A copy of the array's shape, which gradients flow through.

    Raises
    ------
    InvalidArgumentError
        For a length that is no such multiple.
    """
    if not isinstance(tokens, str):
        return _reordered("stripe", array, axis, (-1, shards, tokens))
    check_order(tokens)
    first = _chunks("stripe", array, axis, shards, (CHUNKS, shards))
    return _as_one(jnp.stack([first[0], first[1, ::-1]], axis=1), array, axis)


def unstripe(array: ArrayLike, shards: int, axis: int, tokens: int | Literal["dual_chunk_swap"] = 1) -> jax.Array:
    """The array in the order that it had before stripe() of the same shards, axis and tokens.

    Parameters
    ----------
    array : array
        Of any shape and dtype.
    shards : int
        The number of shards along the mesh's axis.
    axis : int
        The dimension of the sequence, whose length is a multiple of shards * tokens, or of 2 * shards with "dual_chunk_swap".
    tokens : int or "dual_chunk_swap"
        The tokens of a stripe, or the name of the order.

    Returns
    -------
    array
        A copy of the array's shape, which gradients flow through.

    Raises
    ------
    InvalidArgumentError
        For a length that is no such multiple.
    """
    if not isinstance(tokens, str):
        return _reordered("unstripe", array, axis, (shards, -1, tokens))
    check_order(tokens)
    first = _chunks("unstripe", array, axis, shards, (shards, CHUNKS))
    return _as_one(_in_order(first), array, axis)


def _reordered(name, array, axis, shape):
    first, stripes = jnp.moveaxis(array, axis, 0), -math.prod(shape)
    if stripes < 1 or len(first) % stripes:
        raise InvalidArgumentError(f"{name}: expected a length along axis {axis} that is a multiple of shards * tokens, {stripes}, found {len(first)}")
    return _as_one(first.reshape(*shape, *first.shape[1:]).swapaxes(0, 1), array, axis)


def _chunks(name, array, axis, shards, shape):
    """The sequence along the first three dimensions: shape, and the tokens of a chunk."""
    first = jnp.moveaxis(array, axis, 0)
    if shards < 1 or len(first) % (CHUNKS * shards):
        raise InvalidArgumentError(f"{name}: expected a length along axis {axis} that is a multiple of 2 * shards, {CHUNKS * shards}, found {len(first)}")
    return first.reshape(*shape, -1, *first.shape[1:])


def _in_order(chunks):
    """[chunk, ...] in the order of the sequence, of [shard, chunk of the shard, ...]."""
    return jnp.concatenate([chunks[:, 0], chunks[::-1, 1]])


def _as_one(parts, array, axis):
    first = jnp.moveaxis(array, axis, 0)
    return jnp.moveaxis(parts.reshape(first.shape), 0, axis)


class Deal(NamedTuple):
    """Which positions each shard has."""

    shards: int
    queries: int  # that a shard has
    keys: int
    tokens: int  # of a stripe; 0 for blocks
    chunks: int = 1  # blocks that a shard has: two in the order DUAL_CHUNK_SWAP

    @classmethod
    def of(cls, shards, sizes, striped):
        lengths = sizes.seq_q, sizes.seq_kv
        if max(chunks_of(length, striped) for length in lengths) > 1:
            return cls(shards, *lengths, 0, CHUNKS)
        for length in lengths:
            check_stripes(length, striped)
        return cls(shards, *lengths, int(striped))

    def of_chunks(self):
        """The deal whose shards are the chunks of these, in the order of the sequence."""
        return self if self.chunks == 1 else Deal(self.shards * CHUNKS, self.queries // CHUNKS, self.keys // CHUNKS, 0)

    def whole(self, sizes):
        """axis -> size of the score of the whole sequences."""
        return {**sizes.axes(), "q_idx": self.queries * self.shards, "kv_idx": self.keys * self.shards}

    def position(self, compute, length, shard, local):
        """The position of a shard's local index in the whole sequence. compute: OfArrays or OfNodes, whichever the others are."""
        if self.chunks > 1:
            tokens = length // CHUNKS
            # The second chunk's number, less the one by which its local indices begin later.
            mirrored = compute.by("add", compute.by("mul", shard, -1), CHUNKS * self.shards - CHUNKS)
            return compute.add(local, compute.by("mul", compute.where_less(local, tokens, shard, mirrored), tokens))
        within, step = local, length
        if self.tokens:
            step = self.tokens
            stripe, place = (local, 0) if step == 1 else (compute.by("floor_div", local, step), compute.by("mod", local, step))
            within = compute.by("mul", stripe, self.shards * step)
            within = compute.add(within, place) if step > 1 else within
        return compute.add(within, compute.by("mul", shard, step))

    def places(self, length, shard):
        """The positions of all of a shard's indices. shard: its number."""
        if self.chunks > 1:  # two stripes, whose distance is another for each shard
            tokens = length // CHUNKS
            return Places(tokens, tokens, (CHUNKS * self.shards - 1 - CHUNKS * shard) * tokens)
        return Places(self.tokens, self.tokens, self.shards * self.tokens) if self.tokens else Places(length)

    def gathered(self, array, axis_name, axis):
        """Keys or values of all shards, in the order of their positions."""
        if self.shards == 1:
            return array
        before, after = array.shape[:axis], array.shape[axis + 1 :]
        # Along a dimension of their own, which comes first, shards are gathered as they lie; along the sequence XLA would transpose before, too.
        parts = lax.all_gather(array, axis_name=axis_name)
        if self.chunks > 1:
            chunks = jnp.moveaxis(parts.reshape(self.shards, *before, CHUNKS, -1, *after), axis + 1, 1)
            return jnp.moveaxis(_in_order(chunks), 0, axis).reshape(*before, -1, *after)
        parts = parts.reshape(self.shards, *before, -1, self.tokens or array.shape[axis], *after)
        return jnp.moveaxis(parts, 0, axis + 1).reshape(*before, -1, *after)

    def at_positions(self, function, shard, query_argument):
        """A function of positions, None too, as one of local indices of queries and of gathered keys."""
        if function is None:
            return None

        @functools.wraps(function)
        def of_indices(*arguments):
            arguments = list(arguments)
            arguments[query_argument] = self.position(OfArrays, self.queries, shard, arguments[query_argument])
            return function(*arguments)

        return of_indices


class OfArrays:
    """Arithmetic on JAX's integers."""

    @staticmethod
    def add(x, y):
        return x + y

    @staticmethod
    def by(op, x, number):
        return {"add": operator.add, "mul": operator.mul, "floor_div": operator.floordiv, "mod": operator.mod}[op](x, number)

    @staticmethod
    def where_less(x, number, below, other):
        return jnp.where(x < number, below, other)


class OfNodes:
    """Arithmetic on nodes of a program."""

    def __init__(self, builder):
        self._builder = builder

    def add(self, x, y):
        return self._builder.op("add", x, y)

    def by(self, op, x, number):
        return self._builder.op(op, x, self._builder.constant(number, "i32"))

    def where_less(self, x, number, below, other):
        return self._builder.op("select", self.by("lt", x, number), below, other)
