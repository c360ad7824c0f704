"""Attention as the textbook writes it, in NumPy: what scoremod's is compared with."""

import numpy as np


def dense_attention(q, k, v, lengths):
    """softmax(q k^T / sqrt(dim)) v over the first lengths[b] keys of each sentence b.

    q, k, v: [batch, seq, heads, dim] of one float dtype, in which everything is computed; lengths: [batch].
    """
    scale = q.dtype.type(1 / np.sqrt(q.shape[-1]))
    scores = np.einsum("bqhd,bkhd->bhqk", q, k, optimize=True) * scale
    is_padding = np.arange(k.shape[1]) >= lengths[:, None]
    scores = np.where(is_padding[:, None, None, :], -np.inf, scores)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("bhqk,bkhd->bqhd", weights, v, optimize=True)
