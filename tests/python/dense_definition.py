"""Attention as its definition says, in NumPy and any float dtype: what the bindings' results are held to.

score_mod and mask_mod are Python functions of arrays that broadcast to [batch, heads, seq_q, seq_kv].
"""

import numpy as np


def indices(batch, heads, seq_q, seq_kv):
    """b, h, q_idx, kv_idx, each broadcast along the other axes."""
    return np.ogrid[:batch, :heads, :seq_q, :seq_kv]


def attention(q, k, v, score_mod=None, mask_mod=None, scale=None):
    """(o, lse): q [b, s, h, d], k and v with heads that divide q's; o as q, lse [b, h, s]."""
    group = q.shape[2] // k.shape[2]
    k, v = np.repeat(k, group, axis=2), np.repeat(v, group, axis=2)
    scale = q.dtype.type(1 / np.sqrt(q.shape[-1]) if scale is None else scale)
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) * scale
    grid = indices(*scores.shape)
    if score_mod is not None:
        scores = score_mod(scores, *grid)
    if mask_mod is not None:
        scores = np.where(mask_mod(*grid), scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    top = np.where(np.isneginf(top), 0, top)  # a row without a kept key
    weights = np.exp(scores - top)
    total = weights.sum(axis=-1, keepdims=True)
    o = np.einsum("bhqk,bkhd->bqhd", weights / np.where(total == 0, 1, total), v)
    with np.errstate(divide="ignore"):
        lse = np.log(total) + top
    return o, lse[..., 0]


def numeric_gradient(loss, array, step=1e-5):
    """d loss() / d array by central differences; array is float64 and is changed in place meanwhile."""
    gradient = np.zeros_like(array)
    for index in np.ndindex(array.shape):
        at = array[index]
        array[index] = at + step
        above = loss()
        array[index] = at - step
        below = loss()
        array[index] = at
        gradient[index] = (above - below) / (2 * step)
    return gradient
