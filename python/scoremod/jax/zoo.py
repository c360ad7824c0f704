"""Ready-made score_mods and mask_mods for flex_attention: those of `scoremod docs zoo`, with the same names and formulas.

Each function returns a function. Arrays may be of JAX, traced and learned, or of NumPy, or lists.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from scoremod.errors import InvalidArgumentError
from scoremod.jax.arrays import jax_array
from scoremod.signatures import Modifier


def soft_cap(cap: ArrayLike) -> Modifier:
    """cap * tanh(score / cap): keeps scores within (-cap, cap). (Gemma 2, https://arxiv.org/abs/2408.00118.)"""
    return lambda score, b, h, q_idx, kv_idx: cap * jnp.tanh(score / cap)


def alibi(slopes: ArrayLike, symmetric: bool = False) -> Modifier:
    """score + slopes[h] * (kv_idx - q_idx), or with symmetric score - slopes[h] * |q_idx - kv_idx|. slopes: float [heads]; alibi_slopes() has
    the usual ones. (Press et al. 2022, https://arxiv.org/abs/2108.12409.)"""
    slopes = jax_array("slopes", slopes)
    if symmetric:
        return lambda score, b, h, q_idx, kv_idx: score - slopes[h] * jnp.abs(q_idx - kv_idx)
    return lambda score, b, h, q_idx, kv_idx: score + slopes[h] * (kv_idx - q_idx)


def relative_bias(scale: ArrayLike = 1.0) -> Modifier:
    """score + scale * (q_idx - kv_idx)."""
    return lambda score, b, h, q_idx, kv_idx: score + scale * (q_idx - kv_idx)


def full_bias(bias: ArrayLike) -> Modifier:
    """score + bias[b, h, q_idx, kv_idx]; dimensions of size 1 broadcast. bias: float of rank 4."""
    bias = jax_array("bias", bias)
    if bias.ndim != 4:
        raise InvalidArgumentError(f"bias: expected rank 4, found shape {bias.shape}")

    def score_mod(score, *indices):
        return score + bias[tuple(0 if size == 1 else index for size, index in zip(bias.shape, indices))].astype(score.dtype)

    return score_mod


def relative_table(table: ArrayLike) -> Modifier:
    """score + table[h, clip(q_idx - kv_idx, -n, n) + n]. table: float [heads, 2 n + 1], learned. (Distances are clipped as in Shaw et al. 2018,
    https://arxiv.org/abs/1803.02155; here the learned value is added to the score.)"""
    table = jax_array("table", table)
    if table.ndim != 2 or table.shape[1] % 2 == 0:
        raise InvalidArgumentError(f"table: expected shape [heads, 2 * max_distance + 1], found {table.shape}")
    n = table.shape[1] // 2
    return lambda score, b, h, q_idx, kv_idx: score + table[h, jnp.clip(q_idx - kv_idx, -n, n) + n]


def head_temperature(temperature: ArrayLike) -> Modifier:
    """score / temperature[h]. temperature: float [heads]."""
    temperature = jax_array("temperature", temperature)
    return lambda score, b, h, q_idx, kv_idx: score / temperature[h]


def causal() -> Modifier:
    """kv_idx <= q_idx: query 0 sees key 0."""
    return lambda b, h, q_idx, kv_idx: kv_idx <= q_idx


def causal_bottom_right(seq_q: int, seq_kv: int) -> Modifier:
    """kv_idx <= q_idx + (seq_kv - seq_q): the last query sees the last key."""
    return lambda b, h, q_idx, kv_idx: kv_idx <= q_idx + (seq_kv - seq_q)


def sliding_window(window: ArrayLike) -> Modifier:
    """|q_idx - kv_idx| <= window, inclusive."""
    return lambda b, h, q_idx, kv_idx: jnp.abs(q_idx - kv_idx) <= window


def causal_sliding_window(window: ArrayLike) -> Modifier:
    """0 <= q_idx - kv_idx < window: the query itself and the window - 1 keys before it."""
    return lambda b, h, q_idx, kv_idx: (kv_idx <= q_idx) & (q_idx - kv_idx < window)


def prefix_lm(prefix: ArrayLike) -> Modifier:
    """kv_idx < prefix or kv_idx <= q_idx. prefix: a number, or int [batch]."""
    if np.ndim(prefix) == 0:
        return lambda b, h, q_idx, kv_idx: (kv_idx < prefix) | (kv_idx <= q_idx)
    prefix = jax_array("prefix", prefix)
    return lambda b, h, q_idx, kv_idx: (kv_idx < prefix[b]) | (kv_idx <= q_idx)


def documents(query_documents: ArrayLike, key_documents: ArrayLike | None = None) -> Modifier:
    """query_documents[b, q_idx] == key_documents[b, kv_idx]: int [batch, seq]. key_documents: the queries' without it."""
    query_documents = jax_array("query_documents", query_documents)
    key_documents = query_documents if key_documents is None else jax_array("key_documents", key_documents)
    return lambda b, h, q_idx, kv_idx: query_documents[b, q_idx] == key_documents[b, kv_idx]


def padding(lengths: ArrayLike) -> Modifier:
    """kv_idx < lengths[b]: the first lengths[b] keys. lengths: int [batch]."""
    lengths = jax_array("lengths", lengths)
    return lambda b, h, q_idx, kv_idx: kv_idx < lengths[b]


def dilated_window(window: ArrayLike, dilation: ArrayLike) -> Modifier:
    """|q_idx - kv_idx| <= window * dilation, and the distance is a multiple of dilation. (Longformer, https://arxiv.org/abs/2004.05150.)"""

    def mask_mod(b, h, q_idx, kv_idx):
        return (jnp.abs(q_idx - kv_idx) <= window * dilation) & ((q_idx - kv_idx) % dilation == 0)

    return mask_mod


def global_window(global_tokens: ArrayLike, window: ArrayLike) -> Modifier:
    """kv_idx < global_tokens or q_idx < global_tokens or |q_idx - kv_idx| <= window. (Longformer, https://arxiv.org/abs/2004.05150.)"""

    def mask_mod(b, h, q_idx, kv_idx):
        return (kv_idx < global_tokens) | (q_idx < global_tokens) | (jnp.abs(q_idx - kv_idx) <= window)

    return mask_mod


def compose(*score_mods: Modifier) -> Modifier:
    """One score_mod that applies several in order."""

    def score_mod(score, *indices):
        for each in score_mods:
            score = each(score, *indices)
        return score

    return score_mod


def all_of(*mask_mods: Modifier) -> Modifier:
    """A key is kept when every mask_mod keeps it."""
    return _joined(mask_mods, jnp.logical_and)


def any_of(*mask_mods: Modifier) -> Modifier:
    """A key is kept when any mask_mod keeps it."""
    return _joined(mask_mods, jnp.logical_or)


def _joined(mask_mods, join):
    if not mask_mods:
        raise InvalidArgumentError("expected at least one mask_mod, found none")

    def mask_mod(*indices):
        keep = mask_mods[0](*indices)
        for each in mask_mods[1:]:
            keep = join(keep, each(*indices))
        return keep

    return mask_mod


def alibi_slopes(heads: int) -> jax.Array:
    """ALiBi's slopes, float32 [heads], as the authors' code computes them (get_slopes in
    https://github.com/ofirpress/attention_with_linear_biases).

    They are 2^(-8 i / n) for i = 1..n where n is a power of two. Else they are those of the power of two below, then every other one of
    twice that."""
    below = 2 ** (heads.bit_length() - 1)
    slopes = 2.0 ** (-8 / below * np.arange(1, below + 1))
    more = 2.0 ** (-8 / (2 * below) * np.arange(1, 2 * below + 1, 2))
    return jnp.asarray(np.concatenate([slopes, more])[:heads], jnp.float32)
