"""Sequences that are dealt out to shards in stripes of tokens, in turn: with a causal mask every shard then has as much to do.

The functions see positions of the whole sequence, through two operands of the program: the number of the queries' shard, and how far from it the keys'
is. For a known distance comparisons of positions are those of local indices, which are plain masks (scoremod.shard_distance).
"""

import functools
import math
from typing import Literal, NamedTuple

import torch

from scoremod.errors import InvalidArgumentError
from scoremod.program import Builder, OperandDecl
from scoremod.shard_distance import CHUNKS, Shards, at_distance, check_order, check_stripes, chunks_of
from scoremod.torch.kept_traces import KeptTrace, rebased, tensor_of


def stripe(tensor: torch.Tensor, shards: int, dim: int, tokens: int | Literal["dual_chunk_swap"] = 1) -> torch.Tensor:
    """A sequence in the order in which context_parallel_attention(striped=tokens) deals it out: its blocks are the shards.

    Each of `shards` blocks has stripes of so many tokens in turn. With "dual_chunk_swap" block r has chunks r and 2 * shards - 1 - r of
    2 * shards chunks of one length.

    Parameters
    ----------
    tensor : Tensor
        Of any shape and dtype.
    shards : int
        The number of processes of the group.
    dim : int
        The dimension of the sequence, whose length is a multiple of shards * tokens, or of 2 * shards with "dual_chunk_swap".
    tokens : int or "dual_chunk_swap"
        The tokens of a stripe, or the name of the order.

    Returns
    -------
    Tensor
        A copy of the tensor's shape, which gradients flow through.

    Raises
    ------
    InvalidArgumentError
        For a length that is no such multiple.
    """
    if isinstance(tokens, str):
        first, second = _chunks("stripe", tensor, dim, shards, tokens, (CHUNKS, shards)).unbind(dim % tensor.dim())
        return _as_one(torch.stack([first, second.flip(dim % tensor.dim())], dim % tensor.dim() + 1), tensor)
    return _reordered("stripe", tensor, dim, (-1, shards, tokens))


def unstripe(tensor: torch.Tensor, shards: int, dim: int, tokens: int | Literal["dual_chunk_swap"] = 1) -> torch.Tensor:
    """The tensor in the order that it had before stripe() of the same shards, dim and tokens.

    Parameters
    ----------
    tensor : Tensor
        Of any shape and dtype.
    shards : int
        The number of processes of the group.
    dim : int
        The dimension of the sequence, whose length is a multiple of shards * tokens, or of 2 * shards with "dual_chunk_swap".
    tokens : int or "dual_chunk_swap"
        The tokens of a stripe, or the name of the order.

    Returns
    -------
    Tensor
        A copy of the tensor's shape, which gradients flow through.

    Raises
    ------
    InvalidArgumentError
        For a length that is no such multiple.
    """
    if isinstance(tokens, str):
        first, second = _chunks("unstripe", tensor, dim, shards, tokens, (shards, CHUNKS)).unbind(dim % tensor.dim() + 1)
        return _as_one(torch.cat([first, second.flip(dim % tensor.dim())], dim % tensor.dim()), tensor)
    return _reordered("unstripe", tensor, dim, (shards, -1, tokens))


def _chunks(name, tensor, dim, shards, order, shape):
    """The tensor, whose sequence has become these two dimensions and the tokens of a chunk."""
    check_order(order)
    length = tensor.shape[dim]
    if shards < 1 or length % (CHUNKS * shards):
        raise InvalidArgumentError(f"{name}: expected a length along dimension {dim} that is a multiple of 2 * shards, {CHUNKS * shards}, found {length}")
    return tensor.unflatten(dim, (*shape, length // (CHUNKS * shards)))


def _as_one(parts, tensor):
    return parts.reshape(tensor.shape)


def _reordered(name, tensor, dim, shape):
    dim, stripes = dim % tensor.dim(), -math.prod(shape)
    if stripes < 1 or tensor.shape[dim] % stripes:
        raise InvalidArgumentError(f"{name}: expected a length along dim {dim} that is a multiple of shards * tokens, {stripes}, found {tensor.shape[dim]}")
    return tensor.unflatten(dim, shape).transpose(dim, dim + 1).flatten(dim, dim + 2)


class Stripes(NamedTuple):
    """Which positions each shard has. length: tokens of a shard; tokens: of a stripe."""

    shards: int
    length: int
    tokens: int

    @classmethod
    def of(cls, shards, length, striped):
        """The Stripes of context_parallel_attention's argument; None for blocks, of which a shard has chunks_of() it."""
        if chunks_of(length, striped) > 1:
            return None
        check_stripes(length, striped)
        return cls(shards, length, int(striped)) if striped else None

    def position(self, shard, local):
        """The position of a shard's local index in the whole sequence; both may be tensors."""
        if self.tokens == 1:
            return local * self.shards + shard
        return (local // self.tokens * self.shards + shard) * self.tokens + local % self.tokens


class Step:
    """The queries of one shard and the keys of another, or, with source None, the gathered keys of all."""

    def __init__(self, stripes, rank, source, device):
        self._stripes, self._source = stripes, source
        self._rank = rank
        # While the functions are traced, the second stands for the number of the keys' shard.
        values = (rank, 0 if source is None else rank - source)
        self._shard, self._distance = (torch.tensor(value, dtype=torch.int32, device=device) for value in values)

    def at_positions(self, function, first):
        """A function of positions, None too, as one of indices. first: which of its arguments is the query's."""
        if function is None:
            return None
        stripes, shard, distance, is_gathered = self._stripes, self._shard, self._distance, self._source is None

        def of_indices(*arguments):
            arguments = list(arguments)
            arguments[first] = stripes.position(shard, arguments[first])
            key = arguments[first + 1]
            arguments[first + 1] = stripes.position(*((key // stripes.length, key % stripes.length) if is_gathered else (distance, key)))
            return function(*arguments)

        return of_indices

    def rewritten(self, traced, sources):
        """(KeptTrace, sources) of such functions, with the masks that they have at this distance."""
        if self._source is None:
            return traced, sources
        shard, distance = (next((i for i, each in enumerate(sources) if tensor_of(each) is tensor), None) for tensor in (self._shard, self._distance))
        if distance is None:
            return traced, sources
        lengths = (self._stripes.length, self._stripes.length)
        program, order = _at_distance(traced.program, shard, distance, self._stripes.shards, lengths, self._rank - self._source)
        sources = [*sources, rebased(sources[distance], self._shard)]
        return KeptTrace(program, ()), [sources[i] for i in order]


@functools.lru_cache(maxsize=1024)
def _at_distance(program, shard, distance, count, lengths, known):
    """(program, order) of shard_distance.at_distance() of a program whose operand `distance` stands for the number of the keys' shard; a `shard` of None
    is one more operand than there were."""
    builder = Builder()
    for decl in (*program.operands, OperandDecl("i32")):
        builder.operand(decl)
    shard = len(program.operands) if shard is None else shard
    written = []
    for node in program.nodes:
        number = builder.node(node.op, node.type, *(written[arg] for arg in node.args), payload=node.payload)
        if node.op == "operand" and node.payload == distance:
            number = builder.op("sub", builder.node("operand", "i32", payload=shard), number)
        written.append(number)
    whole, order = builder.finish(written[program.value], None if program.keep is None else written[program.keep])
    shards = Shards(order.index(shard), order.index(distance), count, lengths)
    program, of_whole = at_distance(whole, shards, known)
    return program, [order[i] for i in of_whole]
