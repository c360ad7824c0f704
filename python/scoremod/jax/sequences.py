"""Sequences that lie one after the other, and keys in blocks of a pool, brought to the tensors that attention takes: both run on every backend."""

import jax
import jax.numpy as jnp
import numpy as np

from scoremod.errors import InvalidArgumentError


class Ragged:
    """Sequences of all batches in one: query [tokens_q, heads, dim], key and value [tokens_kv, heads_kv, dim], and where each begins."""

    def __init__(self, query, key, value, q_offsets, kv_offsets, layout):
        if layout != "THD":
            raise InvalidArgumentError(f'layout: expected "THD" (tokens, heads, dim) with q_offsets, found {layout!r}')
        for name, array in (("query", query), ("key", key), ("value", value)):
            if array.ndim != 3:
                raise InvalidArgumentError(f"{name}: expected 3 dimensions (tokens, heads, dim) with q_offsets, found shape {array.shape}")
        if q_offsets is None:
            raise InvalidArgumentError("kv_offsets: expected q_offsets beside them, found none; give those of the queries")
        kv_offsets = q_offsets if kv_offsets is None else kv_offsets
        q_offsets, kv_offsets = _checked("q_offsets", q_offsets, query.shape[0]), _checked("kv_offsets", kv_offsets, key.shape[0])
        if q_offsets.shape != kv_offsets.shape:
            raise InvalidArgumentError(f"kv_offsets: expected as many as q_offsets, {q_offsets.shape[0]}, found {kv_offsets.shape[0]}")
        self.batch = q_offsets.shape[0] - 1
        # What is in no sequence is in none of the other's either.
        self._queries = _sequences(q_offsets, query.shape[0], -1)
        self._keys = _sequences(kv_offsets, key.shape[0], -2)

    def score_mod(self, function):
        """The function of a score, seen from the one long sequence."""
        return function and (lambda score, b, h, q_idx, kv_idx: function(score, *self._place(h, q_idx, kv_idx)))

    def mask_mod(self, function):
        (of_query, _), (of_key, _) = self._queries, self._keys

        def mask(b, h, q_idx, kv_idx):
            same = of_query[q_idx] == of_key[kv_idx]
            return same if function is None else same & function(*self._place(h, q_idx, kv_idx))

        return mask

    def _place(self, h, q_idx, kv_idx):
        (sequence, first), (_, first_key) = self._queries, self._keys
        return sequence[q_idx], h, q_idx - first[q_idx], kv_idx - first_key[kv_idx]


def _checked(name, offsets, tokens):
    array = jnp.asarray(offsets)
    if array.ndim != 1 or array.shape[0] < 2 or not jnp.issubdtype(array.dtype, jnp.integer):
        raise InvalidArgumentError(f"{name}: expected an integer array [batch + 1], found {array.dtype} of shape {array.shape}")
    if isinstance(array, jax.core.Tracer):
        return array  # its values are not known here
    known = np.asarray(array)
    if known[0] < 0 or known[-1] > tokens or (np.diff(known) < 0).any():
        raise InvalidArgumentError(f"{name}: expected numbers from 0 to {tokens}, the tokens, that do not descend; found {known}")
    return array


def _sequences(offsets, tokens, none):
    """For each token the number of its sequence, or `none`, and the sequence's first token."""
    offsets, token = offsets.astype(jnp.int32), jnp.arange(tokens, dtype=jnp.int32)
    sequence = jnp.searchsorted(offsets, token, side="right").astype(jnp.int32) - 1
    inside = (token >= offsets[0]) & (token < offsets[-1])
    return jnp.where(inside, sequence, none), offsets[jnp.clip(sequence, 0, offsets.shape[0] - 2)]


def gathered(key, value, page_table, lengths, layout, batch):
    """Key and value of `batch` sequences, from blocks of a pool. page_table: an integer array [batch, blocks of a sequence], or a pair of them."""
    if lengths is None or (isinstance(lengths, (tuple, list)) and lengths[1] is None):
        raise InvalidArgumentError("page_table: expected lengths of the keys beside it, found none; give lengths=, of each batch")
    of_keys = jnp.asarray(lengths[1] if isinstance(lengths, (tuple, list)) else lengths)
    tables = page_table if isinstance(page_table, (tuple, list)) else (page_table, page_table)
    if len(tables) != 2:
        raise InvalidArgumentError(f"page_table: expected one table or a pair, of keys and of values, found {len(tables)}")
    return [_gather(array, table, of_keys, layout, batch) for array, table in zip((key, value), tables)]


def _gather(array, table, lengths, layout, batch):
    table = jnp.asarray(table)
    if table.ndim != 2 or table.shape[0] != batch or not jnp.issubdtype(table.dtype, jnp.integer):
        raise InvalidArgumentError(
            f"page_table: expected an integer array [batch, blocks of a sequence] with batch {batch}, found {table.dtype} of shape {table.shape}"
        )
    if array.ndim != 4 or sorted(layout) != sorted("BSHD"):
        raise InvalidArgumentError(
            f"page_table: expected key and value [blocks, block size, heads, dim] in the order of a layout as {layout!r} has it, found shape {array.shape}"
        )
    order = [layout.index(letter) for letter in "BSHD"]
    blocks = jnp.take(jnp.transpose(array, order), table, axis=0, mode="clip")  # what a table holds beyond a length may be anything
    whole = blocks.reshape(table.shape[0], -1, *blocks.shape[3:])
    inside = jnp.arange(whole.shape[1]) < jnp.clip(lengths, 0)[:, None]
    whole = jnp.where(inside[..., None, None], whole, 0)  # another sequence's blocks may hold NaN
    return jnp.transpose(whole, ["BSHD".index(letter) for letter in layout])
