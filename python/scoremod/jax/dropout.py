"""Dropout of attention weights. The rate is a part of the call, and the random key an array of it. So another key compiles nothing anew,
and the host never reads it.

A call's keys are the operand dropout_keys of its problem (docs/reference/problem.md), int32 [batch, 4]. A row has the two words of Philox's key,
the batch's number in its counters, and an offset of the heads. Each batch keeps its row in shards and under jax.vmap. In a part of a sequence a row
also has the places of its queries and keys in the whole: int32 [batch, 10].
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from scoremod.errors import InvalidArgumentError

_WORD0, _WORD1, _BATCH, _HEAD = range(4)


def with_float32_rate(spec):
    """The CallSpec with its rate as float32 has it."""
    return spec._replace(dropout=float(np.float32(spec.dropout)))


def call_keys(key, batches):
    """The keys of a whole call, from a key of jax.random. batches: the number of each batch, int32."""
    if key is None:
        raise InvalidArgumentError("dropout_key: expected a key of jax.random beside dropout_rate, found none")
    try:
        bits = jax.random.bits(key, (2,), jnp.uint32)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"dropout_key: expected one key of jax.random, found {key!r}") from error
    words = jnp.broadcast_to(lax.bitcast_convert_type(bits, jnp.int32), (batches.shape[0], 2))
    places = jnp.stack([batches, jnp.zeros_like(batches)], axis=1)
    return jnp.concatenate([words, places], axis=1)


def at_head(keys, first):
    """The keys of a shard whose first head has this index in the call."""
    return keys.at[:, _HEAD].add(jnp.asarray(first, jnp.int32))


class Places(NamedTuple):
    """The positions of a shard's indices in the whole sequence. Shard n begins at n * apart. It has stripes of `tokens` tokens, each `step`
    after the one before; with 0 tokens it is one block."""

    apart: int
    tokens: int = 0
    step: int = 0


WHOLE = Places(0)
PLACED_WORDS = 4 + 2 * len(WHOLE)


def at_places(keys, *places):
    """The keys of a part of a sequence. places: (Places, number of the shard) of its queries, and of its keys."""
    words = [jnp.stack([jnp.asarray(shard, jnp.int32) * of.apart, *map(jnp.int32, of[1:])]) for of, shard in places]
    words = jnp.concatenate(words)
    return jnp.concatenate([keys, jnp.broadcast_to(words, (keys.shape[0], words.shape[0]))], axis=1)


def shares(keys, rate, shape, first_key):
    """The dropout factors of weights [batch, heads, queries, keys], from key first_key on, a multiple of 4. XLA operations compute the
    function that all backends do."""
    batch, heads, queries, count = shape
    words = lax.bitcast_convert_type(keys, jnp.uint32)[:, :, None, None, None]
    indices = [jnp.arange(n, dtype=jnp.uint32) for n in (heads, queries, -(-count // 4))]
    four = (jnp.asarray(first_key, jnp.uint32) // 4 + indices[2])[None, None, None, :]
    head = words[:, _HEAD] + indices[0][None, :, None, None]
    counter = jnp.broadcast_arrays(four, indices[1][None, None, :, None], head, words[:, _BATCH])
    bits = jnp.stack(_philox(counter, (words[:, _WORD0], words[:, _WORD1])), axis=-1)
    return _factors(bits.reshape(batch, heads, queries, -1)[..., :count], rate)


def shares_at(keys, rate, shape, first_key, of_query, query, key):
    """The dropout factors of tokens at other places, [batch, heads, tokens, some of the key tokens].

    of_query: an offset of each query token's batch number; query, key: the position of each token. In packed sequences, which are one batch,
    the factor of two tokens of different sequences is arbitrary."""
    _, heads, _, count = shape
    words = lax.bitcast_convert_type(keys, jnp.uint32)[:, :, None, None, None]
    key = lax.dynamic_slice_in_dim(key, first_key, count).astype(jnp.uint32)
    head = words[:, _HEAD] + jnp.arange(heads, dtype=jnp.uint32)[None, :, None, None]
    rows = [x.astype(jnp.uint32)[None, None, :, None] for x in (query, of_query)]
    counter = jnp.broadcast_arrays((key // 4)[None, None, None, :], rows[0], head, words[:, _BATCH] + rows[1])
    bits = jnp.stack(_philox(counter, (words[:, _WORD0], words[:, _WORD1])))
    return _factors(jnp.select([key % 4 == n for n in range(4)], list(bits)), rate)


def _factors(bits, rate):
    threshold = np.uint32(int(float(np.float32(rate)) * 2.0**32 + 0.5))
    return jnp.where(bits >= threshold, np.float32(1 / (1 - rate)), np.float32(0))


def _philox(counter, key):
    """Philox4x32-10."""
    for number in range(10):
        key0, key1 = (word + np.uint32(step * number % 2**32) for word, step in zip(key, (0x9E3779B9, 0xBB67AE85)))
        (high0, low0), (high1, low1) = _product(counter[0], 0xD2511F53), _product(counter[2], 0xCD9E8D57)
        counter = high1 ^ counter[1] ^ key0, low1, high0 ^ counter[3] ^ key1, low0
    return counter


def _product(x, constant):
    """The halves of the 64 bits of x times a constant."""
    c_low, c_high = np.uint32(constant & 0xFFFF), np.uint32(constant >> 16)
    x_low, x_high = x & np.uint32(0xFFFF), x >> 16
    middle = x_high * c_low + (x_low * c_low >> 16)
    other = x_low * c_high + (middle & np.uint32(0xFFFF))
    return x_high * c_high + (middle >> 16) + (other >> 16), x * np.uint32(constant)
