"""Lengths of sequences as part of a mask_mod, and a sink beside the keys' terms of a softmax: both run on every backend."""

import jax
import jax.numpy as jnp
import numpy as np

from scoremod.errors import InvalidArgumentError
from scoremod.jax.arrays import array_of, host_numbers, whole, within_int32
from scoremod.user_functions import check_callable


def bounded(mask_mod, lengths, batch):
    """The mask_mod that also keeps indices below each batch's lengths. lengths: an integer array [batch] for the keys, or a pair of such for
    queries and keys, either of which may be None."""
    of_queries, of_keys = checked_lengths(lengths, batch)
    if mask_mod is not None:
        check_callable("mask_mod", mask_mod)

    def bounded_mask(b, h, q_idx, kv_idx):
        keep = True if mask_mod is None else mask_mod(b, h, q_idx, kv_idx)
        if not is_mask(keep):
            return keep  # the tracer says what is wrong with it
        if of_queries is not None:
            keep = keep & (q_idx < of_queries[b])
        if of_keys is not None:
            keep = keep & (kv_idx < of_keys[b])
        return keep

    return mask_mod if of_queries is None and of_keys is None else bounded_mask


def is_mask(keep):
    """Whether a mask_mod's result can be joined with another's."""
    return isinstance(keep, bool) or getattr(keep, "dtype", None) == jnp.bool_


def checked_lengths(lengths, batch, most=(None, None)):
    """(lengths of queries, of keys) as arrays, or None. most: how many queries and keys there are, a number or one for each batch, to which lengths
    that the host knows are held; None where that is not known."""
    pair = lengths if isinstance(lengths, (tuple, list)) else (None, lengths)
    if len(pair) != 2:
        raise InvalidArgumentError(f"lengths: expected {_lengths_of(batch)}; found {len(pair)} of them")
    return [_checked(*each, batch) for each in zip(pair, most)]


def _lengths_of(batch):
    return f"an integer array of shape ({batch},), a length for each batch, or a pair of them for queries and keys"


def _checked(given, most, batch):
    if given is None:
        return None
    array = array_of("lengths", given, _lengths_of(batch))
    if array.shape != (batch,) or not jnp.issubdtype(array.dtype, jnp.integer):
        raise InvalidArgumentError(f"lengths: expected {_lengths_of(batch)}; found {array.dtype} of shape {array.shape}")
    known = host_numbers(given)  # of more bits than the array may have
    if known is not None and batch:
        most = np.broadcast_to(np.iinfo(np.int32).max if most is None else most, (batch,))
        wrong = np.flatnonzero((known < 0) | (known > most))
        if wrong.size:
            b = wrong[0]
            raise InvalidArgumentError(f"lengths: expected a number from 0 to {most[b]}, the positions there are, for batch {b}; found {known[b]}")
    return whole(within_int32(array))  # differences of unsigned ones would wrap


def checked_sink(sink, heads):
    """The sink of each of so many heads, as an array."""
    expected = f"a float array of shape ({heads},), one for each query head, or a number"
    sink = array_of("sink", float(sink) if type(sink) is int else sink, expected)
    if sink.shape not in ((), (heads,)) or not jnp.issubdtype(sink.dtype, jnp.floating):
        raise InvalidArgumentError(f"sink: expected {expected}; found {sink.dtype} of shape {sink.shape}")
    return jnp.broadcast_to(sink, (heads,))


def with_sink(o, lse, sink, layout):
    """(o, lse) of the softmax whose sums have exp(sink) beside the keys' terms, from those of the softmax without. Differentiable in all
    three; a row without a key gives 0 and the sink, and so does any row whose sink is inf, whatever its keys hold."""
    order = ["BHS".index(letter) for letter in layout if letter != "D"]

    def of_rows(array):  # [batch, heads, seq_q]
        return jnp.transpose(jnp.broadcast_to(array, lse.shape), order)[..., None]

    sink = sink.astype(lse.dtype)[:, None]
    takes_all, is_none = jnp.isposinf(sink), jnp.isneginf(sink)
    # Derivatives of branches that are not taken must be numbers, too.
    number = jnp.where(takes_all | is_none, 0, sink)
    of_keys = jnp.where(takes_all, 0, lse)
    share = jnp.where(is_none, 1, jax.nn.sigmoid(of_keys - number))  # what is left to the keys
    scaled = jnp.where(of_rows(takes_all), 0, o.astype(lse.dtype)) * of_rows(share)
    joined = jnp.where(is_none, of_keys, jnp.logaddexp(of_keys, number))
    return scaled.astype(o.dtype), jnp.where(takes_all, sink, joined)
