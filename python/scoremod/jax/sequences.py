"""Varlen sequences and paged KV caches. They are fields of a problem (Sequences.place, Pages.place), or are brought to dense tensors, which
attention on every backend takes."""

import copy
import functools

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from scoremod.call_spec import checked_longest
from scoremod.errors import InvalidArgumentError
from scoremod.jax.arrays import array_of, host_numbers, jax_array, within_int32
from scoremod.jax.lengths_and_sinks import checked_lengths
from scoremod.places import Paged, Ragged, RaggedPaged


class Sequences:
    """Sequences of all batches in one: query [tokens_q, heads, dim], key and value [tokens_kv, heads_kv, dim], and where each begins."""

    is_paged = False

    def __init__(self, query, key, value, q_offsets, kv_offsets, layout, max_length=None):
        if layout != "THD":
            raise InvalidArgumentError(f'layout: expected "THD" (tokens, heads, dim) with q_offsets, found {layout!r}')
        for name, array in (("query", query), ("key", key), ("value", value)):
            if array.ndim != 3:
                raise InvalidArgumentError(f"{name}: expected 3 dimensions (tokens, heads, dim) with q_offsets, found shape {array.shape}")
        if q_offsets is None:
            raise InvalidArgumentError("kv_offsets: expected q_offsets beside them, found none; give the queries' offsets")
        kv_offsets = q_offsets if kv_offsets is None else kv_offsets
        tokens = query.shape[0], key.shape[0]
        longest = checked_longest(max_length)
        given = (q_offsets, kv_offsets)
        self._longest = [_longest(*each) for each in zip(longest, given, tokens)]
        names = ("q_offsets", "kv_offsets")
        self._offsets = [_checked(*each) for each in zip(names, given, tokens, self._longest)]
        q_offsets, kv_offsets = self._offsets
        if q_offsets.shape != kv_offsets.shape:
            raise InvalidArgumentError(f"kv_offsets: expected as many as q_offsets, {q_offsets.shape[0]}, found {kv_offsets.shape[0]}")
        self.batch = q_offsets.shape[0] - 1
        self._tokens = tokens
        # Tokens before the first and after the last sequence are sequences of their own, which have no keys or no queries.
        self._outside = [0 if _covers(offsets, count) else -(-count // longest) for offsets, count, longest in zip(self._offsets, tokens, self._longest)]

    def of(self, key, value):
        """The sequences of other keys and values of these lengths."""
        return self

    def most(self):
        """How many queries and keys each sequence has, as far as that is known."""
        known = map(_known, self._offsets)
        return [count if offsets is None else np.diff(offsets) for offsets, count in zip(known, self._tokens)]

    def longest(self):
        """The most queries and keys that a sequence has, as far as that is known."""
        return [min(int(np.max(count, initial=1)), longest) for count, longest in zip(self.most(), self._longest)]

    def counts(self):
        """How many queries and keys each sequence has, integer arrays [batch]."""
        return [jnp.diff(offsets) for offsets in self._offsets]

    def place(self):
        """How a problem has them. Its sequences have numbers from `first` on."""
        return Ragged(self.batch + 2 * sum(self._outside), *self._longest)

    @property
    def first(self):
        return sum(self._outside)

    def bound(self):
        """The arrays of Ragged.bound."""
        return [self._with_outside(number) for number in (0, 1)]

    def numbers(self):
        """The number that the functions see as b, of each of the problem's sequences."""
        return jnp.arange(self.place().sequences, dtype=jnp.int32) - self.first

    def tokens_places(self):
        """((number of the sequence, position in it) of each query token, the same of each key token)."""
        return [(sequence, jnp.arange(count, dtype=jnp.int32) - first) for (sequence, first), count in zip(self._sequences, self._tokens)]

    def _with_outside(self, number):
        """Offsets that begin at 0 and end at the tokens."""
        offsets, tokens, longest = self._offsets[number].astype(jnp.int32), self._tokens[number], self._longest[number]
        outside, of_other = self._outside[number], self._outside[1 - number]
        steps = jnp.arange(1, outside + 1, dtype=jnp.int32) * longest
        before, after = jnp.minimum(steps, offsets[0]), jnp.minimum(offsets[-1] + steps, tokens)
        start = jnp.zeros(1, jnp.int32) if outside else offsets[:1]
        last = after[-1:] if outside else offsets[-1:]
        first = [start, before, jnp.repeat(offsets[:1], of_other)] if number == 0 else [start, jnp.repeat(start, of_other), before]
        end = [after, jnp.repeat(last, of_other)] if number == 0 else [jnp.repeat(offsets[-1:], of_other), after]
        return jnp.concatenate([*first, offsets[1:], *end])

    @functools.cached_property
    def _sequences(self):
        """The number of its sequence and the sequence's first token, for each query token and each key token. Tokens outside of all sequences
        have numbers that match no token of the other side."""
        return [_sequences(*each) for each in zip(self._offsets, self._tokens, (-1, -2))]

    def score_mod(self, function):
        """The function of a score, seen from the one long sequence."""
        return function and (lambda score, b, h, q_idx, kv_idx: function(score, *self._place(h, q_idx, kv_idx)))

    def mask_mod(self, function):
        (of_query, _), (of_key, _) = self._sequences

        def mask(b, h, q_idx, kv_idx):
            same = of_query[q_idx] == of_key[kv_idx]
            return same if function is None else same & function(*self._place(h, q_idx, kv_idx))

        return mask

    def _place(self, h, q_idx, kv_idx):
        (sequence, first), (_, first_key) = self._sequences
        return sequence[q_idx], h, q_idx - first[q_idx], kv_idx - first_key[kv_idx]


def _longest(given, offsets, tokens):
    """The most tokens that a sequence has; of known offsets the next power of two, so that others seldom compile anything."""
    if given is None:
        known = None if isinstance(offsets, jax.core.Tracer) else np.asarray(offsets)
        if known is None or known.ndim != 1 or known.size < 2 or known.dtype.kind not in "iu":
            return max(tokens, 1)
        most = max(int(np.diff(known.astype(np.int64)).max()), 16)
        return max(min(1 << (most - 1).bit_length(), tokens), 1)
    return min(given, max(tokens, 1))


def _known(offsets):
    """The numbers of offsets; None for those of a traced function."""
    return None if isinstance(offsets, jax.core.Tracer) else np.asarray(offsets)


def _covers(offsets, tokens):
    known = _known(offsets)
    return known is not None and known[0] == 0 and known[-1] == tokens


def _checked(name, offsets, tokens, longest):
    array = jax_array(name, offsets)
    if array.ndim != 1 or array.shape[0] < 2 or not jnp.issubdtype(array.dtype, jnp.integer):
        raise InvalidArgumentError(f"{name}: expected an integer array [batch + 1], found {array.dtype} of shape {array.shape}")
    array = within_int32(array)  # differences of unsigned ones would wrap
    # Within jax.shard_map what is made of NumPy's numbers is traced.
    known = _known(array) if isinstance(offsets, jax.Array) else np.asarray(offsets).astype(np.int64)
    if known is None:
        return array  # its values are not known here
    if known[0] < 0 or known[-1] > tokens or (np.diff(known) < 0).any():
        raise InvalidArgumentError(f"{name}: expected numbers from 0 to {tokens}, the number of tokens, that do not descend; found {known}")
    if np.diff(known).max() > longest:
        raise InvalidArgumentError(f"max_length: expected at least the {np.diff(known).max()} tokens of the longest sequence of {name}, found {longest}")
    return array


def _sequences(offsets, tokens, none):
    """For each token the number of its sequence, or `none`, and the sequence's first token."""
    offsets, token = offsets.astype(jnp.int32), jnp.arange(tokens, dtype=jnp.int32)
    sequence = jnp.searchsorted(offsets, token, side="right").astype(jnp.int32) - 1
    inside = (token >= offsets[0]) & (token < offsets[-1])
    return jnp.where(inside, sequence, none), offsets[jnp.clip(sequence, 0, offsets.shape[0] - 2)]


class Pages:
    """Key and value of `batch` sequences in a paged KV cache, and their page tables.

    page_table: an integer array [batch, blocks of a sequence], or a pair of them."""

    is_paged = True

    def __init__(self, key, value, page_table, lengths, layout, batch):
        if lengths is None or (isinstance(lengths, (tuple, list)) and lengths[1] is None):
            raise InvalidArgumentError("page_table: expected lengths of the keys beside it, found none; give lengths=")
        given = lengths[1] if isinstance(lengths, (tuple, list)) else lengths
        self.batch = batch
        tables = page_table if isinstance(page_table, (tuple, list)) else (page_table, page_table)
        if len(tables) != 2:
            raise InvalidArgumentError(f"page_table: expected one table or a pair, of keys and of values, found {len(tables)}")
        self._tables = [_checked_table(array, table, layout, batch) for array, table in zip((key, value), tables)]
        of_keys, of_values = (table.shape[1] for table in self._tables)
        if of_keys != of_values:
            raise InvalidArgumentError(
                f"page_table: expected as many blocks of a sequence for keys and for values, found {of_keys} and {of_values}; pad the narrower table, "
                "whose entries beyond the lengths may be anything"
            )
        self._pools, self._layout = (key, value), layout
        self._block_size, of_values = (pool.shape[layout.index("S")] for pool in self._pools)
        if of_values != self._block_size:
            raise InvalidArgumentError(f"value: expected pages of key's {self._block_size} positions, found {of_values} in shape {value.shape}")
        _, self.lengths = checked_lengths((None, given), batch, self.most())
        for pool, table in zip(self._pools, tables):
            _check_blocks(host_numbers(table), host_numbers(given), self._blocks(pool), pool.shape[layout.index("S")])

    def most(self):
        """How many queries, which is not known here, and keys a sequence has at most."""
        return None, self._block_size * self._tables[0].shape[1]

    longest = most

    def counts(self):
        """How many queries, which is not known here, and keys each sequence has."""
        return None, self.lengths

    def _blocks(self, pool):
        return pool.shape[self._layout.index("B")]

    def of(self, key, value):
        """These pages with another cache's keys and values."""
        other = copy.copy(self)
        other._pools = (key, value)
        return other

    def place(self):
        """How a problem has them; None where the two numbers of pages are unlike, which it has not."""
        of_keys, _ = self._tables
        return Paged(of_keys.shape[1]) if len({self._blocks(pool) for pool in self._pools}) == 1 else None

    def bound(self):
        """The arrays of Paged.bound, and the lengths of the keys. A number of no block stays one: who reads the keys finds it."""
        return [within_int32(array) for array in (*self._tables, self.lengths)]

    def gathered(self):
        """Key and value of each sequence, in memory of their own."""
        return [gathered(array, table, self.lengths, self._layout) for array, table in zip(self._pools, self._tables)]

    def gathered_lengths(self):
        """How many of the gathered keys each sequence has."""
        return gathered_lengths(self._pools, self._tables, self.lengths, self._layout)


class MixedBatch(Sequences):
    """Queries of all sequences in one, [tokens_q, heads, dim], over a paged KV cache: prefill, chunks of it and decode steps in one call. key, value:
    [pages, page size, heads_kv, dim]. Where pages are gathered, each sequence has as many keys as its page table has room for."""

    is_paged = True

    def __init__(self, query, key, value, q_offsets, page_table, lengths, layout, max_length=None):
        if layout != "THD":
            raise InvalidArgumentError(f'layout: expected "THD" (tokens, heads, dim) with q_offsets, found {layout!r}')
        for name, array in (("key", key), ("value", value)):
            if array.ndim != 4:
                raise InvalidArgumentError(f"{name}: expected 4 dimensions (pages, page size, heads, dim) with page_table, found shape {array.shape}")
        batch = jax_array("q_offsets", q_offsets).size - 1
        self.pages = Pages(key, value, page_table, lengths, "BSHD", batch)
        _, most = self.pages.most()
        key, value = (jax.ShapeDtypeStruct((batch * most, *array.shape[2:]), array.dtype) for array in (key, value))
        longest, _ = checked_longest(max_length)
        super().__init__(query, key, value, q_offsets, token_offsets(batch, most), layout, (longest, most))

    def counts(self):
        queries, _ = super().counts()
        return queries, self.pages.lengths

    def of(self, key, value):
        other = copy.copy(self)
        other.pages = self.pages.of(key, value)
        return other

    def place(self):
        place, pages = super().place(), self.pages.place()
        return pages and RaggedPaged(place.sequences, place.longest_q, pages.blocks_per_sequence)

    def bound(self):
        """The arrays of RaggedPaged.bound, and the lengths of the keys: 0 for tokens that no sequence has."""
        outside = (self.first, self.first)
        return [self._with_outside(0), *(jnp.pad(array, (outside, *[(0, 0)] * (array.ndim - 1))) for array in self.pages.bound())]

    def gathered(self):
        return [array.reshape(-1, *array.shape[2:]) for array in self.pages.gathered()]

    def gathered_lengths(self):
        return self.pages.gathered_lengths()


def token_offsets(batch, most):
    """The offsets of sequences that have `most` tokens each."""
    return np.arange(batch + 1, dtype=np.int32) * np.int32(most)


def _check_blocks(table, lengths, blocks, block_size):
    """Raises InvalidArgumentError for a block that isn't there and holds keys below a length, where both are known."""
    if table is None or lengths is None:
        return
    used = np.arange(table.shape[1]) * block_size < lengths[:, None]
    wrong = np.argwhere(used & ((table < 0) | (table >= blocks)))
    if wrong.size:
        b, page = wrong[0]
        raise InvalidArgumentError(
            f"page_table: expected blocks from 0 to {blocks - 1}, found {table[b, page]} at [{b}, {page}], which holds keys below the sequence's length of "
            f"{lengths[b]}"
        )


def _checked_table(array, table, layout, batch):
    table = array_of("page_table", table, "an integer array [batch, blocks of a sequence]")
    if table.ndim != 2 or table.shape[0] != batch or not jnp.issubdtype(table.dtype, jnp.integer):
        raise InvalidArgumentError(
            f"page_table: expected an integer array [batch, blocks of a sequence] with batch {batch}, found {table.dtype} of shape {table.shape}"
        )
    if array.ndim != 4 or sorted(layout) != sorted("BSHD"):
        raise InvalidArgumentError(
            f"page_table: expected key and value [blocks, block size, heads, dim] in the order of a layout such as {layout!r}, found shape {array.shape}"
        )
    return table


def gathered(array, table, lengths, layout):
    """The keys, or values, of each sequence, gathered from a paged KV cache; 0 from its length on."""
    order = [layout.index(letter) for letter in "BSHD"]
    # Beyond gathered_lengths() a table may hold anything.
    pool = jnp.transpose(array, order)
    # Sequences may share blocks, whose gradients XLA adds up in the dtype of what is taken: 16 bits lose each small term of a large sum.
    wide = pool.astype(jnp.float32) if pool.dtype in (jnp.bfloat16, jnp.float16) else pool
    blocks = jnp.take(wide, table, axis=0, mode="clip").astype(pool.dtype)
    whole = blocks.reshape(table.shape[0], table.shape[1] * blocks.shape[2], *blocks.shape[3:])
    inside = jnp.arange(whole.shape[1]) < jnp.clip(lengths, 0)[:, None]
    whole = jnp.where(inside[..., None, None], whole, 0)  # another sequence's blocks may hold NaN
    return jnp.transpose(whole, ["BSHD".index(letter) for letter in layout])


def gathered_lengths(pools, tables, lengths, layout):
    """The lengths of sequences that end before their first block that the pool hasn't: it is another sequence's block that would be read there."""
    for pool, table in zip(pools, tables):
        there = (table >= 0) & (table < pool.shape[layout.index("B")])
        lengths = jnp.minimum(lengths, jnp.cumprod(there.astype(jnp.int32), axis=1).sum(axis=1) * pool.shape[layout.index("S")])
    return lengths.astype(jnp.int32)
