"""The index of each sequence's first query, as what the functions see as q_idx."""

from __future__ import annotations

import jax.numpy as jnp

from scoremod.call_spec import checked_start, wrong_start
from scoremod.errors import InvalidArgumentError
from scoremod.jax.arrays import array_of, host_numbers, whole
from scoremod.jax.lengths_and_sinks import checked_lengths
from scoremod.query_positions import is_bottom_right, without_needless_mask
from scoremod.sizes import sizes_of
from scoremod.user_functions import check_callable


def started(q_start, query, key, layout, placed, lengths, score_mod, mask_mod):
    """(score_mod, mask_mod) of indices, for functions of positions. placed: the Sequences, Pages or MixedBatch; None for dense tensors."""
    batch = sizes_of(layout, query, key, key, may_be_empty=True).batch if placed is None else placed.batch
    if is_bottom_right(q_start):
        start, queries = _at_the_end(query, key, layout, placed, lengths, batch)
        mask_mod = without_needless_mask(mask_mod, queries)
    else:
        start = _given(q_start, batch)
    for name, function in (("score_mod", score_mod), ("mask_mod", mask_mod)):
        if function is not None:
            check_callable(name, function)
    of_batches = start if getattr(start, "shape", ()) else None

    def at(b, q_idx):
        return q_idx + (start if of_batches is None else of_batches[b])  # pyright: ignore[reportIndexIssue]

    def score_mod_at_positions(score, b, h, q_idx, kv_idx):
        return score_mod(score, b, h, at(b, q_idx), kv_idx)

    def mask_mod_at_positions(b, h, q_idx, kv_idx):
        return mask_mod(b, h, at(b, q_idx), kv_idx)

    return None if score_mod is None else score_mod_at_positions, None if mask_mod is None else mask_mod_at_positions


def _given(q_start, batch):
    if not hasattr(q_start, "shape") and not isinstance(q_start, (list, tuple)):
        return jnp.int32(checked_start(q_start, batch))
    start = array_of("q_start", q_start, f"integers of shape ({batch},), one for each batch")
    if start.shape not in ((), (batch,)) or not jnp.issubdtype(start.dtype, jnp.integer):
        raise wrong_start(q_start, batch)
    known = host_numbers(q_start)
    if known is not None and known.size and known.min() < 0:
        raise InvalidArgumentError(f"q_start: expected indices from 0, found {known.min()} of batch {known.argmin()}")
    return whole(start).astype(jnp.int32)


def _at_the_end(query, key, layout, placed, lengths, batch):
    """(how many more keys than queries each sequence has, int32 [batch], or one number where all have as many; how many queries, if all have as many).

    The former is below 0 where there are more queries.
    """
    of_queries, of_keys = checked_lengths(lengths, batch) if lengths is not None else (None, None)
    queries, keys = placed.counts() if placed is not None else (None, None)
    if of_queries is not None:
        queries = of_queries
    elif queries is None:
        queries = query.shape[layout.index("S")]
    if of_keys is not None:
        keys = of_keys
    elif keys is None:
        keys = key.shape[layout.index("S")]
    start = keys - queries
    return start if isinstance(start, int) else jnp.asarray(start, jnp.int32), queries
