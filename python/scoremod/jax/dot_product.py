"""jax.nn.dot_product_attention's arguments and results, run by scoremod."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from scoremod.errors import InvalidArgumentError, UnsupportedError
from scoremod.jax.api import flex_attention
from scoremod.jax.arrays import array_of
from scoremod.signatures import Backends


def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: ArrayLike | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: None = None,
    return_residual: bool = False,
    backends: Backends = None,
) -> Any:
    """Attention with the arguments of jax.nn.dot_product_attention, and its results but for a query without any key, whose output is 0.

    Parameters
    ----------
    query : array [batch, queries, heads, dim] or [queries, heads, dim]
        float32, float16 or bfloat16.
    key, value : array [batch, keys, KV heads, dim] or [keys, KV heads, dim]
        Of query's dtype; KV heads divide the heads.
    bias : float array, optional
        Added to the logits; 4 dimensions that broadcast to [batch, heads, queries, keys], or 3 without the batch. It has a gradient, and is read
        where it lies, without a copy for the dimensions that it lacks.
    mask : bool array, optional
        Of the shapes of bias: whether the query may look at the key.
    scale : float or scalar array, optional
        The factor of the logits; 1 / sqrt(dim) without it.
    is_causal : bool
        Keeps keys up to the query's index.
    query_seq_lengths, key_value_seq_lengths : integer array [batch], optional
        How many queries and keys take part. Outputs of queries beyond are 0.
    local_window_size : int or (int, int), optional
        How many keys before and after its own index a query looks at; one number is both.
    implementation : None
        Refused otherwise; backends= chooses among scoremod's.
    return_residual : bool
        Also returns the log-sum-exp [batch, queries, heads], of key's dtype and without a gradient; -inf for a query without any key.
    backends
        flex_attention's.

    Returns
    -------
    array of query's shape, or a tuple of it and the residual

    Raises
    ------
    InvalidArgumentError
        For shapes and dtypes that don't fit, as flex_attention.
    UnsupportedError
        For what no backend runs; the message names the reason.
    """
    if implementation is not None:
        raise UnsupportedError(f"implementation: expected None, found {implementation!r:.100}; backends= names those that may run it")
    arrays = {name: array_of(name, each, "an array") for name, each in (("query", query), ("key", key), ("value", value))}
    ranks = {each.ndim for each in arrays.values()}
    if len(ranks) != 1 or not ranks <= {3, 4}:
        found = ", ".join(f"{name} {each.shape}" for name, each in arrays.items())
        raise InvalidArgumentError(f"expected query, key and value of 4 dimensions [batch, sequence, heads, dim], or of 3 without a batch, found {found}")
    is_one = ranks == {3}
    q, k, v = (each[None] if is_one else each for each in arrays.values())
    sizes = q.shape[0], q.shape[2], q.shape[1], k.shape[1]
    read_bias, read_mask = (_reader(name, each, sizes) for name, each in (("bias", bias), ("mask", mask)))
    o, lse = flex_attention(
        q,
        k,
        v,
        None if read_bias is None else lambda score, b, h, q_idx, kv_idx: score + read_bias(b, h, q_idx, kv_idx).astype(score.dtype),
        _mask_mod(read_mask, is_causal, local_window_size),
        scale=scale,
        lengths=None if query_seq_lengths is None and key_value_seq_lengths is None else (query_seq_lengths, key_value_seq_lengths),
        return_lse=True,
        backends=backends,
    )
    o = o[0] if is_one else o
    if not return_residual:
        return o
    residual = jax.lax.stop_gradient(lse.transpose(0, 2, 1).astype(k.dtype))
    return o, residual[0] if is_one else residual


def _reader(name, given, sizes):
    """A function of (b, h, q_idx, kv_idx) that reads an array of dimensions that broadcast to `sizes`; None for no array."""
    if given is None:
        return None
    array = array_of(name, given, "an array that broadcasts to [batch, heads, queries, keys]")
    if name == "mask" and array.dtype != jnp.bool_:
        raise InvalidArgumentError(f"mask: expected bools, found {array.dtype}; numbers that are added go into bias=")
    if array.ndim not in (3, 4) or any(size not in (1, most) for size, most in zip(array.shape[::-1], sizes[::-1])):
        raise InvalidArgumentError(f"{name}: expected a shape that broadcasts to {sizes}, [batch, heads, queries, keys], found {array.shape}")
    shape = (1,) * (4 - array.ndim) + array.shape
    axes = [axis for axis in range(4) if shape[axis] != 1]
    array = array.reshape([shape[axis] for axis in axes])
    return lambda *indices: array[tuple(indices[axis] for axis in axes)]


def _mask_mod(read_mask, is_causal, window):
    sides = window if isinstance(window, (tuple, list)) else (window, window)
    if window is not None and (len(sides) != 2 or not all(isinstance(side, int) for side in sides)):
        raise InvalidArgumentError(f"local_window_size: expected an integer or a pair of them, found {window!r:.100}")
    left, right = sides
    if read_mask is None and not is_causal and window is None:
        return None

    def mask_mod(b, h, q_idx, kv_idx):
        kept = [] if read_mask is None else [read_mask(b, h, q_idx, kv_idx)]
        if is_causal:
            kept.append(q_idx >= kv_idx)
        if window is not None:
            kept += [q_idx - kv_idx <= left, kv_idx - q_idx <= right]
        result = kept[0]
        for each in kept[1:]:
            result = result & each
        return result

    return mask_mod
