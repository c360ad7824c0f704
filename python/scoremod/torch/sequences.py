"""Varlen sequences, paged KV caches and both at once, a mixed batch: flex_attention's arguments for them, checked as far as their numbers are known
before the call."""

from typing import NamedTuple

import torch

from scoremod.call_spec import checked_longest
from scoremod.errors import InvalidArgumentError
from scoremod.torch.call import FLOAT8, MIXED, PAGED, RAGGED
from scoremod.torch.captures import has_data, operand_tensor
from scoremod.torch.checked_integers import checked_pages, int32_in_graph, on_host
from scoremod.torch.signatures import Lengths, MaxLength, PageTable


class Placed(NamedTuple):
    """The places of a call's sequences.

    bound: the tensors of Ragged.bound; of Paged.bound or RaggedPaged.bound, and the keys' lengths. most: the most queries and keys of a sequence.
    longest: Call.longest. covers: whether each token is in a sequence, as far as that is known."""

    place: str
    batch: int
    bound: tuple
    most: tuple
    longest: tuple = (None, None)
    covers: bool = True

    @property
    def is_paged(self):
        return self.place in (PAGED, MIXED)


class SequenceArguments(NamedTuple):
    """flex_attention's arguments that say where sequences lie, by their names."""

    q_offsets: torch.Tensor | None = None
    kv_offsets: torch.Tensor | None = None
    page_table: PageTable = None
    max_length: MaxLength = None
    lengths: Lengths = None


def placed_of(query, key, value, given: SequenceArguments):
    """The Placed of flex_attention's arguments; None where tensors lie as usual."""
    q_offsets, kv_offsets, page_table, max_length, lengths = given.q_offsets, given.kv_offsets, given.page_table, given.max_length, given.lengths
    if q_offsets is None and kv_offsets is None:
        if max_length is not None:
            raise InvalidArgumentError("max_length: expected q_offsets beside it, found none; other tensors have their sequences' length")
        if page_table is not None:
            _check_ranks(query, "[batch, heads, sequence, dim]", key, value)
            return Placed(PAGED, query.shape[0], *_pages(query, key, page_table, lengths, query.shape[0], "batches"))
        for name, tensor in (("query", query), ("key", key), ("value", value)):
            if tensor.dim() != 4:
                raise InvalidArgumentError(
                    f"{name}: expected 4 dimensions [batch, heads, sequence, dim], found shape {tuple(tensor.shape)}; [tokens, heads, dim] go with q_offsets="
                )
        return None
    if page_table is not None:
        return _mixed(query, key, value, q_offsets, kv_offsets, page_table, max_length, lengths)
    if q_offsets is None:
        raise InvalidArgumentError("kv_offsets: expected q_offsets beside them, found none; give those of the queries")
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() != 3:
            raise InvalidArgumentError(f"{name}: expected 3 dimensions [tokens, heads, dim] with q_offsets, found shape {tuple(tensor.shape)}")
    return _sequences(query, key, q_offsets, q_offsets if kv_offsets is None else kv_offsets, max_length)


def _sequences(query, key, q_offsets, kv_offsets, max_length):
    of_queries, of_keys = checked_longest(max_length)
    offsets_q, most_q, longest_q, covers_q = _offsets("q_offsets", q_offsets, query, query, of_queries)
    offsets_kv, most_kv, longest_kv, covers_kv = _offsets("kv_offsets", kv_offsets, key, query, of_keys)
    if offsets_q.shape != offsets_kv.shape:
        raise InvalidArgumentError(f"kv_offsets: expected as many as q_offsets, {offsets_q.shape[0]}, found {offsets_kv.shape[0]}")
    pair = offsets_q, offsets_kv
    return Placed(RAGGED, offsets_q.shape[0] - 1, pair, (most_q, most_kv), (longest_q, longest_kv), covers_q and covers_kv)


def _mixed(query, key, value, q_offsets, kv_offsets, page_table, max_length, lengths):
    if kv_offsets is not None:
        raise InvalidArgumentError("page_table: expected no kv_offsets beside it, found them; page_table and lengths say where the keys are")
    _check_ranks(query, "[tokens, heads, dim] with q_offsets", key, value)
    of_queries, _ = checked_longest(max_length)
    offsets, most, longest, covers = _offsets("q_offsets", q_offsets, query, query, of_queries)
    batch = offsets.shape[0] - 1
    bound, (_, most_keys) = _pages(query, key, page_table, lengths, batch, "sequences")
    return Placed(MIXED, batch, (offsets, *bound), (most, most_keys), (longest, None), covers)


def _offsets(name, offsets, tensor, query, longest):
    """(int32 offsets, the most tokens of a sequence of `tensor`, that of Call.longest, whether each token is in a sequence as far as that is known)."""
    offsets = dense_int32(name, offsets, query, 1, "[batch + 1]")
    if offsets.shape[0] < 2:
        raise InvalidArgumentError(f"{name}: expected at least 2 numbers, where the first sequence begins and ends; found {offsets.shape[0]}")
    if not _is_known(offsets):
        return offsets, tensor.shape[0] if longest is None else longest, longest, True
    numbers = offsets.tolist()
    return offsets, *_checked(name, numbers, tensor.shape[0], longest), numbers[0] == 0 and numbers[-1] == tensor.shape[0]


def known_lengths(offsets, tokens, longest):
    """(most tokens that a sequence is taken to have, first offset, last offset) of offsets in host memory; None of offsets that are refused."""
    numbers = offsets.tolist()
    try:
        return _checked("", numbers, tokens, longest)[1], numbers[0], numbers[-1]
    except InvalidArgumentError:
        return None


def has_known_lengths(kept, tokens, longest):
    """A check (repeated_calls.Entry) that the known_lengths() of offsets are these."""
    return lambda offsets, _: known_lengths(offsets, tokens, longest) == kept


def _checked(name, numbers, tokens, longest):
    """The most tokens that a sequence of these offsets has, and is taken to have. Without a given number that is the next power of two, so that other
    offsets seldom compile anything."""
    lengths = [end - first for first, end in zip(numbers, numbers[1:])]
    if numbers[0] < 0 or numbers[-1] > tokens or min(lengths) < 0:
        raise InvalidArgumentError(f"{name}: expected numbers from 0 to {tokens}, the tokens, that do not descend; found {_shown(numbers)}")
    if longest is None:
        return max(lengths), min(1 << max(max(lengths) - 1, 15).bit_length(), tokens)
    if max(lengths) > longest:
        raise InvalidArgumentError(f"max_length: expected at least the {max(lengths)} tokens of the longest sequence of {name}, found {longest}")
    return max(lengths), longest


def _shown(numbers):
    return numbers if len(numbers) <= 16 else f"[{', '.join(map(str, numbers[:8]))}, ... {', '.join(map(str, numbers[-8:]))}]"


def _check_ranks(query, expected, key, value):
    pages = "[pages, heads, page size, dim] with a page_table"
    for name, tensor, rank, what in (("query", query, expected.count(",") + 1, expected), ("key", key, 4, pages), ("value", value, 4, pages)):
        if tensor.dim() != rank:
            raise InvalidArgumentError(f"{name}: expected {rank} dimensions {what}, found shape {tuple(tensor.shape)}")
    if value.shape[2] != key.shape[2]:
        raise InvalidArgumentError(f"value: expected pages of key's {key.shape[2]} positions, found {value.shape[2]} in shape {tuple(value.shape)}")


def _pages(query, key, page_table, lengths, batch, of):
    """((page table of keys, that of values, lengths of keys), (the most queries, the most keys of a sequence)). of: what there are `batch` of."""
    tables = page_table if isinstance(page_table, (tuple, list)) else (page_table, page_table)
    if len(tables) != 2:
        raise InvalidArgumentError(f"page_table: expected one table or a pair, of keys and of values, found {len(tables)}")
    if isinstance(lengths, (tuple, list)) and len(lengths) != 2:
        raise InvalidArgumentError(f"lengths: expected lengths of the keys, or a pair, of queries and of keys, found {len(lengths)}")
    of_keys = lengths[1] if isinstance(lengths, (tuple, list)) else lengths
    if of_keys is None:
        raise InvalidArgumentError("page_table: expected lengths of the keys beside it, found none; give lengths=, of each batch")
    tables = [dense_int32("page_table", table, query, 2, "[batch, blocks of a sequence]") for table in tables]
    for table in tables:
        if table.shape[0] != batch or table.shape[1] < 1 or table.shape != tables[0].shape:
            found = " and ".join(str(tuple(each.shape)) for each in tables)
            batches = f"query's {batch} {of}"
            raise InvalidArgumentError(f"page_table: expected a row of blocks for each of {batches}, alike for keys and values; found {found}")
    of_keys = dense_int32("lengths", of_keys, query, 1, "[batch]")
    if of_keys.shape[0] != batch:
        raise InvalidArgumentError(f"lengths: expected a length for each of query's {batch} {of}, found shape {tuple(of_keys.shape)}")
    return (*tables, of_keys), (query.shape[-2], tables[0].shape[1] * key.shape[2])


def dense_int32(name, tensor, query, rank, meaning) -> torch.Tensor:
    """A dense int32 tensor of a caller's integers."""
    is_integers = isinstance(tensor, torch.Tensor) and tensor.dtype in (torch.int32, torch.int64) and tensor.dim() == rank
    if not is_integers or tensor.device != query.device:
        found = f"{tensor.dtype} of shape {tuple(tensor.shape)} on {tensor.device}" if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise InvalidArgumentError(f"{name}: expected an int32 or int64 tensor {meaning} on {query.device}, where query is; found {found}")
    if torch.compiler.is_dynamo_compiling():
        return int32_in_graph(tensor, name).contiguous()
    return operand_tensor(tensor, name=name).contiguous()


def _is_known(offsets):
    """Whether a call's offsets can be read without waiting for a device."""
    return not torch.compiler.is_dynamo_compiling() and offsets.device.type == "cpu" and has_data(offsets)


def gathered(key, value, bound):
    """(key, value, lengths) of each sequence in memory of its own, [batch, heads, sequence, dim]; 0 from its length on. bound: that of pages.

    In device memory a sequence ends before the first block that its table names wrongly, so that it has no other sequence's keys.
    """
    *tables, lengths = bound
    pools = tuple(zip((key, value), tables))
    for pool, table in pools:
        if not on_host(table):
            lengths = _ended(lengths, (table >= 0) & (table < pool.shape[0]), pool.shape[2])
    return *(_gathered(pool, checked_pages(table, lengths, pool.shape[0], pool.shape[2]), lengths) for pool, table in pools), lengths


def gathered_tokens(key, value, bound):
    """(key, value, tensors of Ragged.bound and lengths, the most keys of a sequence) of a mixed batch: the keys of each sequence in memory of their own,
    [tokens, heads, dim]. bound: that of a mixed batch."""
    q_offsets, *pages = bound
    key, value, lengths = gathered(key, value, pages)
    batch, most = lengths.shape[0], key.shape[2]
    kv_offsets = torch.arange(batch + 1, dtype=torch.int32, device=key.device) * most
    return *(each.transpose(1, 2).flatten(0, 1) for each in (key, value)), (q_offsets, kv_offsets, lengths), most


def _ended(lengths, is_block, block_size):
    """Lengths that end before the first block that is none."""
    return torch.minimum(lengths, is_block.cumprod(dim=1, dtype=torch.int32).sum(dim=1, dtype=torch.int32) * block_size)


def _gathered(pool, table, lengths):
    if pool.dtype in FLOAT8:  # which PyTorch moves as bytes alone
        return _gathered(pool.view(torch.uint8), table, lengths).view(pool.dtype)
    at = table.long().clamp(0, pool.shape[0] - 1)  # what a table holds beyond a length may be anything
    # Sequences may share blocks, whose gradients PyTorch adds up: on the host in the pool's own dtype, of which 16 bits lose each small term of a large sum.
    is_narrow = on_host(pool) and pool.requires_grad and pool.dtype != torch.float32
    blocks = pool.float()[at].to(pool.dtype) if is_narrow else pool[at]
    whole = blocks.transpose(1, 2).flatten(2, 3)
    inside = torch.arange(whole.shape[2], device=whole.device) < lengths[:, None]
    return torch.where(inside[:, None, :, None], whole, 0)  # another sequence's blocks may hold NaN
