"""New keys and values of a step, written into the pages of a KV cache."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from scoremod.errors import InvalidArgumentError
from scoremod.float8_factors import needless_page_factor
from scoremod.jax.arrays import host_numbers, jax_array
from scoremod.jax.float8 import factor_of_heads, is_float8, saturated


def append_to_pages(
    k_pages: ArrayLike,
    v_pages: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    page_table: ArrayLike,
    lengths: ArrayLike,
    offsets: ArrayLike | None = None,
    *,
    descale_k: ArrayLike | None = None,
    descale_v: ArrayLike | None = None,
) -> tuple[jax.Array, ...]:
    """A paged KV cache with new keys and values in it.

    Inside a jitted function that donates the cache (donate_argnums), XLA writes in place.

    Parameters
    ----------
    k_pages, v_pages : array [pages, page size, KV heads, dim]
        The cache.
    key, value : array [tokens, KV heads, dim], or [batch, sequence, KV heads, dim]
        The new ones: one sequence after the other with `offsets`, or equally many for each sequence without.
    page_table : integer array [batch, pages of a sequence]
        Position j of a sequence is in page page_table[b, j // page size]. No two sequences may write to one place.
    lengths : integer array [batch]
        How many keys each sequence has with the new ones, which come last; flex_attention takes the same.
    offsets : integer array [batch + 1], optional
        Sequence b has the new tokens from offsets[b] up to offsets[b + 1]: flex_attention's q_offsets. Tokens in no sequence are not written.
    descale_k, descale_v : float or float array of one element or [KV heads], or float32 array [pages, page size, KV heads, 1], optional
        Of FP8 pages, flex_attention's: new numbers of 16 or 32 bits are divided by them, and rounded. Magnitudes beyond the dtype's largest number
        saturate; NaN stays NaN. Of the last shape they change, too: each new token gets a scale in each KV head, its largest magnitude divided by the
        dtype's largest number.

    Returns
    -------
    tuple of two to four arrays
        The new k_pages and v_pages, and the new descale_k and descale_v, of those that have a scale for each token.

    Raises
    ------
    InvalidArgumentError
        For arrays that don't fit, and for places that the cache has not where the host knows them. Other such tokens are not written.
    """
    k_pages, v_pages, key, value = (jax_array(name, x) for name, x in (("k_pages", k_pages), ("v_pages", v_pages), ("key", key), ("value", value)))
    table, ends = _integers("page_table", page_table, 2), _integers("lengths", lengths, 1)
    batch = table.shape[0]
    (key, *key_scales), (value, *value_scales) = (
        _stored(name, new, pool, descale) for name, new, pool, descale in (("descale_k", key, k_pages, descale_k), ("descale_v", value, v_pages, descale_v))
    )
    _check(k_pages, v_pages, key, value, 4 if offsets is None else 3)
    written = [(k_pages, key), (v_pages, value), *key_scales, *value_scales]
    if ends.shape != (batch,):
        raise InvalidArgumentError(f"lengths: expected a length for each of page_table's {batch} rows, found shape {ends.shape}")
    if offsets is None:
        if key.shape[0] != batch:
            raise InvalidArgumentError(f"key: expected a batch for each of page_table's {batch} rows, found shape {key.shape}")
        offsets = np.arange(batch + 1, dtype=np.int32) * key.shape[1]
        written = [(pool, new.reshape(-1, *new.shape[2:])) for pool, new in written]
    if _integers("offsets", offsets, 1).shape != (batch + 1,):
        raise InvalidArgumentError(f"offsets: expected {batch + 1} numbers, one more than page_table has rows, found shape {jnp.shape(offsets)}")
    tokens = written[0][1].shape[0]
    if tokens == 0 or table.size == 0:
        return tuple(pool for pool, _ in written)
    known = [host_numbers(x) for x in (offsets, lengths, page_table)]
    pages, page_size = k_pages.shape[:2]
    if all(each is not None for each in known):
        of_tokens, of_keys, of_pages = (np.asarray(each, np.int64) for each in known)  # unsigned ones have no numbers below 0
        _check_places(_places(np, of_tokens, of_keys, of_pages, tokens, page_size), pages)
    page, position, _ = _places(jnp, _integers("offsets", offsets, 1), ends, table, tokens, page_size)
    page = jnp.where((page >= 0) & (page < pages), page, pages)  # which the scatter drops
    return tuple(pool.at[page, position].set(new, mode="drop") for pool, new in written)  # pyright: ignore[reportReturnType]


def _stored(name, new, pool, descale):
    """(new numbers as the pages store them), and behind them (scales, those of the new tokens) where `descale` has one for each position."""
    if descale is None or jnp.ndim(descale) != 4 or jnp.size(descale) == 1 or pool.ndim != 4 or new.shape[-2:] != pool.shape[2:]:
        return (_quantized(name, new, pool, descale),)
    scales = jax_array(name, descale)
    _check_is_quantized(name, new, pool)
    expected = (*pool.shape[:3], 1)
    if scales.shape != expected or scales.dtype != jnp.float32:
        raise InvalidArgumentError(
            f"{name}: expected a scale of each position of the pages, float32 of shape {expected}, found {scales.dtype} of shape {scales.shape}"
        )
    largest, of_float = float(jnp.finfo(pool.dtype).max), np.finfo(np.float32)
    wide = new.astype(jnp.float32)
    most = jnp.minimum(jnp.abs(wide).max(-1, keepdims=True), of_float.max)
    factor = jnp.where(most == 0, np.float32(1), jnp.maximum(most / largest, of_float.tiny))
    return saturated(wide / factor, pool.dtype), (scales, factor)


def _check_is_quantized(name, new, pool):
    if not is_float8(pool) or is_float8(new) or not jnp.issubdtype(new.dtype, jnp.floating):
        raise needless_page_factor(name, pool.dtype, new.dtype)


def _quantized(name, new, pool, descale):
    """New numbers [..., KV heads, dim] as FP8 pages store them, with their factor, which `name` names; as they are without one."""
    if descale is None or pool.ndim != 4 or new.shape[-2:] != pool.shape[2:]:  # which _check() refuses
        return new
    _check_is_quantized(name, new, pool)
    return saturated(new.astype(jnp.float32) / factor_of_heads(name, descale, pool.shape[2])[:, None], pool.dtype)


def _integers(name, given, rank):
    array = jax_array(name, given)
    if array.ndim != rank or not jnp.issubdtype(array.dtype, jnp.integer):
        raise InvalidArgumentError(f"{name}: expected an integer array of {rank} dimensions, found {array.dtype} of shape {array.shape}")
    return array.astype(jnp.int32)


def _check(k_pages, v_pages, key, value, rank):
    for name, pool, new in (("key", k_pages, key), ("value", v_pages, value)):
        if pool.ndim != 4 or pool.shape[:3] != k_pages.shape[:3]:
            raise InvalidArgumentError(
                f"{name[0]}_pages: expected [pages, page size, KV heads, dim], alike for keys and values but for dim, found shape {pool.shape}"
            )
        if new.ndim != rank:
            what = "[tokens, KV heads, dim] with offsets" if rank == 3 else "[batch, sequence, KV heads, dim] without offsets"
            raise InvalidArgumentError(f"{name}: expected {what}, found shape {new.shape}")
        is_of_shape = new.shape[-2:] == pool.shape[2:] and new.shape[:-1] == key.shape[:-1]
        if is_of_shape and is_float8(pool) and not is_float8(new):
            raise InvalidArgumentError(f"{name}: expected {pool.dtype}, as the pages have, found {new.dtype}; give descale_{name[0]}")
        if not is_of_shape or new.dtype != pool.dtype:
            raise InvalidArgumentError(
                f"{name}: expected {pool.dtype} with {pool.shape[2]} heads and a head dim of {pool.shape[3]}, as the pages have, alike for key and value; "
                f"found {new.dtype} of shape {new.shape}"
            )


def _places(xp, offsets, lengths, table, tokens, page_size):
    """(page, position in it, sequence) of each token: page -1 for a token of no sequence, -2 for one beyond its sequence's pages."""
    token = xp.arange(tokens, dtype=np.int32)
    sequence = xp.searchsorted(offsets, token, side="right") - 1
    inside = (sequence >= 0) & (sequence < table.shape[0])
    sequence = xp.clip(sequence, 0, table.shape[0] - 1)
    place = lengths[sequence] - offsets[sequence + 1] + token
    fits = (place >= 0) & (place < table.shape[1] * page_size)
    page = table[sequence, xp.clip(place // page_size, 0, table.shape[1] - 1)]
    return xp.where(inside, xp.where(fits & (page >= 0), page, -2), -1), place % page_size, sequence


def _check_places(places, pages):
    page, _, sequence = places
    wrong = np.flatnonzero((page == -2) | (page >= pages))
    if wrong.size:
        raise InvalidArgumentError(
            f"append_to_pages: expected a place in the cache for each new token, found none for token {wrong[0]} of sequence {sequence[wrong[0]]}: its length, "
            f"less what comes after the token, is below 0 or beyond its row of page_table, or the page there is none of 0 to {pages - 1}"
        )
