"""Token lists: each query attends to the keys that its row of a list names. The call becomes one on a paged KV cache with pages of one token, in which
each query is a sequence of its own. Whatever takes page tables runs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from scoremod.errors import InvalidArgumentError, UnsupportedError
from scoremod.float8_factors import SCALE_BLOCK, are_block_scales
from scoremod.jax.arrays import array_of, host_numbers, within_int32
from scoremod.jax.lengths_and_sinks import bounded, checked_lengths, is_mask
from scoremod.jax.query_starts import started
from scoremod.query_positions import named
from scoremod.sizes import sizes_of
from scoremod.token_lists import MOST_TOKENS, refuse_beside, wrong_entry, wrong_list
from scoremod.user_functions import check_callable


class ListedCall(NamedTuple):
    """flex_attention's arguments that mean something else beside a token list. query, key and value may be shapes. others: arguments by their names,
    with all that can't be given beside it."""

    query: Any
    key: Any
    value: Any
    score_mod: Any
    mask_mod: Any
    layout: str
    lengths: Any
    q_start: Any
    others: dict[str, Any]


def attend_to_lists(attend: Callable[..., Any], token_list, call: ListedCall, **options):
    """flex_attention's results beside a token list. attend: flex_attention itself; options: its other arguments."""
    paged = paged_call(token_list, call)
    for name, array in (("descale_q", call.query), ("descale_k", call.key), ("descale_v", call.value)):
        options[name] = _scales_of_tokens(options[name], array, call.layout)
    results = attend(**paged, **options)
    sizes = _sizes(call)
    o, *others = results if isinstance(results, tuple) else (results,)
    o = jnp.transpose(o.reshape(sizes.batch, sizes.seq_q, *o.shape[2:]), ["BSHD".index(letter) for letter in call.layout])
    others = [each if each.ndim == 0 else each.reshape(sizes.batch, sizes.seq_q, sizes.heads_q).transpose(0, 2, 1) for each in others]
    return (o, *others) if others else o


def paged_call(token_list, call: ListedCall) -> dict[str, Any]:
    """flex_attention's arguments, by their names, of the call on pages that one with a token list becomes. Raises what that is refused with."""
    refuse_beside(call.others)
    refuse_explicit_axes(token_list, call.query, call.key, call.value)
    sizes = _sizes(call)
    score_mod, mask_mod = _functions_of_indices(call, sizes)
    keys = _checked_keys(token_list, sizes.batch, sizes.seq_q, sizes.seq_kv)
    pages, lengths = _pages_and_lengths(keys, sizes)
    score_mod, mask_mod = _functions_of_rows(keys, sizes, score_mod, mask_mod)
    query, *pools = (_rows(each, call.layout) for each in (call.query, call.key, call.value))
    if 0 in (sizes.batch, sizes.seq_kv):  # a pool has at least one page; no entry names it
        pools = [jnp.zeros((1, *each.shape[1:]), each.dtype) for each in pools]
    tensors = dict(zip(("query", "key", "value"), (query, *pools)))
    return {**tensors, "score_mod": score_mod, "mask_mod": mask_mod, "layout": "BSHD", "page_table": pages, "lengths": lengths}


def refuse_explicit_axes(token_list, query, key, value):
    """Raises UnsupportedError for arrays that are sharded over explicit axes."""
    for name, each in (("query", query), ("key", key), ("value", value), ("token_list", token_list)):
        if isinstance(each, jax.Array) and any(jax.typeof(each).sharding.spec):
            raise UnsupportedError(
                f"token_list: expected no array sharded over explicit axes beside it, found {name}; call flex_attention within jax.shard_map, on each device's own"
            )


def _scales_of_tokens(scales, array, layout):
    """The block scales of an array's tokens, in the order of _rows(); other factors as they are."""
    if not hasattr(scales, "shape") or not are_block_scales(scales.shape, layout, array.shape):
        return scales
    axes = [layout.index(letter) for letter in "BS"]
    if 0 in (array.shape[axis] for axis in axes):  # nothing is read
        return jnp.float32(1)
    for axis in axes:
        size, extent = array.shape[axis], scales.shape[axis]
        if extent != size:
            places = jnp.arange(size)
            scales = jnp.take(scales, places // SCALE_BLOCK if extent > 1 else jnp.zeros_like(places), axis)
    return _rows(scales, layout)


def _sizes(call):
    return sizes_of(call.layout, call.query, call.key, call.value, may_be_empty=True)


def _rows(tensor, layout):
    """The positions of all batches as batches of one, [batch * positions, 1, heads, dim]; a shape of a shape."""

    def rows(tensor):
        batches = jnp.transpose(tensor, [layout.index(letter) for letter in "BSHD"])
        return batches.reshape(batches.shape[0] * batches.shape[1], 1, *batches.shape[2:])

    return jax.eval_shape(rows, tensor) if isinstance(tensor, jax.ShapeDtypeStruct) else rows(tensor)


def _functions_of_indices(call, sizes):
    """(score_mod, mask_mod) with all that the call says about positions: of a query's and a key's index in the call's arrays."""
    mask_mod, q_start = named(call.mask_mod, call.q_start)
    score_mod = call.score_mod
    for name, function in (("score_mod", score_mod), ("mask_mod", mask_mod)):
        if function is not None:
            check_callable(name, function)
    if call.lengths is not None:
        checked_lengths(call.lengths, sizes.batch, (sizes.seq_q, sizes.seq_kv))
    if q_start is not None:
        score_mod, mask_mod = started(q_start, call.query, call.key, call.layout, None, call.lengths, score_mod, mask_mod)
    if call.lengths is not None:
        mask_mod = bounded(mask_mod, call.lengths, sizes.batch)
    return score_mod, mask_mod


def _functions_of_rows(keys, sizes, score_mod, mask_mod):
    """The functions of a row's number and of an entry's place in it, for those of a call's indices. A kernel reads the indices, and divides nothing.
    They are never negative, which the trace is told: otherwise the sizes of all that they index would be part of the program."""
    shape = sizes.batch, sizes.seq_q
    of_batch, of_query = (jax.lax.broadcasted_iota(jnp.int32, shape, axis).reshape(shape[0] * shape[1]) for axis in (0, 1))

    def indices(b, h, kv_idx):
        return jnp.maximum(of_batch[b], 0), h, jnp.maximum(of_query[b], 0), jnp.maximum(keys[b, kv_idx], 0)

    def score_mod_of_rows(score, b, h, q_idx, kv_idx):
        return score_mod(score, *indices(b, h, kv_idx))

    def is_key(b, h, q_idx, kv_idx):
        return keys[b, kv_idx] >= 0

    def mask_mod_of_rows(b, h, q_idx, kv_idx):
        keep = mask_mod(*indices(b, h, kv_idx))
        return (keys[b, kv_idx] >= 0) & keep if is_mask(keep) else keep  # the tracer says what is wrong with others

    return None if score_mod is None else score_mod_of_rows, is_key if mask_mod is None else mask_mod_of_rows


def _pages_and_lengths(keys, sizes):
    """(each entry's token among those of all batches, how many entries of each row there are up to its last key), of the rows' keys."""
    places = jnp.arange(1, keys.shape[1] + 1, dtype=jnp.int32)
    lengths = jnp.where(keys >= 0, places, 0).max(axis=1)
    # An entry without a key between others reads a key of its own row: no other memory, which may hold NaN, is ever read.
    present = jnp.where(keys >= 0, keys, keys.max(axis=1, keepdims=True))
    before = jax.lax.broadcasted_iota(jnp.int32, (sizes.batch, sizes.seq_q), 0) * sizes.seq_kv
    return present + before.reshape(-1, 1), lengths


def _checked_keys(token_list, batch, queries, tokens):
    """The index of each row's keys in its batch, int32 [batch * queries, entries], or -1 for none."""
    expected = "integers [batch, queries, entries]"
    array = array_of("token_list", token_list, expected)
    if array.ndim != 3 or array.shape[0] not in (1, batch) or array.shape[1] != queries or not jnp.issubdtype(array.dtype, jnp.integer):
        raise wrong_list("integers", batch, queries, f"{array.dtype} of shape {array.shape}")
    if isinstance(batch, int) and isinstance(tokens, int) and batch * tokens > MOST_TOKENS:
        raise InvalidArgumentError(
            f"token_list: expected at most {MOST_TOKENS} tokens in all batches of key, found {batch * tokens}; attend to fewer batches in a call"
        )
    known = host_numbers(token_list)  # of more bits than the array may have
    if known is not None and known.size:
        if known.max() >= tokens:
            place = np.argwhere(known >= tokens)[0].tolist()
            raise wrong_entry(place, known[tuple(place)], tokens)
        if not isinstance(token_list, jax.Array):
            array = jnp.asarray(np.maximum(known.astype(np.int64), -1).astype(np.int32))
    if array.shape[2] == 0:  # a page table has at least one column
        array = jnp.full((*array.shape[:2], 1), -1, jnp.int32)
    entries = within_int32(array)
    keys = jnp.where((entries < 0) | (entries >= tokens), -1, entries)
    return jnp.broadcast_to(keys, (batch, queries, keys.shape[2])).reshape(batch * queries, keys.shape[2])
