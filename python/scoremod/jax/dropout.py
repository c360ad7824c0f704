"""Dropout of attention weights: the rate is a part of the call, and what decides which weights are dropped an array of it, so that nothing is
compiled anew for another key.

A call's numbers are six uint32: the halves of the seed and of the offset, and the indices of its first batch and first head, which shards have
beside the whole call's.
"""

import numbers

import jax
import jax.numpy as jnp
import numpy as np

from scoremod.errors import InvalidArgumentError

_BATCH, _HEAD, COUNT = 4, 5, 6


def checked_rate(rate):
    """The rate as float32 has it."""
    if isinstance(rate, bool) or not isinstance(rate, numbers.Real) or not 0 <= rate < 1:
        raise InvalidArgumentError(f"dropout_rate: expected a number of at least 0 and below 1, found {rate!r}")
    return float(np.float32(rate))


def call_numbers(key):
    """The numbers of a whole call, from a key of jax.random."""
    if key is None:
        raise InvalidArgumentError("dropout_key: expected a key of jax.random beside dropout_rate, found none")
    try:
        bits = jax.random.bits(key, (_BATCH,), jnp.uint32)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"dropout_key: expected one key of jax.random, found {key!r}") from error
    return jnp.concatenate([bits, jnp.zeros(COUNT - _BATCH, jnp.uint32)])


def shifted(call_numbers, *, batch=0, head=0):
    """The numbers of a shard whose first batch and head have these indices in the call."""
    return call_numbers.at[_BATCH].add(jnp.asarray(batch, jnp.uint32)).at[_HEAD].add(jnp.asarray(head, jnp.uint32))
