"""The attention that the examples are compared with: plain JAX, with all scores in memory."""

import math

import jax
import jax.numpy as jnp


def dense_attention(q, k, v, score_mod, mask_mod):
    """[batch, seq, heads, dim]; k and v may have fewer heads. Scores are float32, or float64 for such arrays."""
    wide = jnp.promote_types(q.dtype, jnp.float32)
    k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=wide) / math.sqrt(q.shape[-1])
    indices = [jnp.arange(size).reshape([-1 if axis == own else 1 for axis in range(4)]) for own, size in enumerate(scores.shape)]
    scores = jnp.broadcast_to(score_mod(scores, *indices), scores.shape)
    scores = jnp.where(mask_mod(*indices), scores, -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1).astype(v.dtype), v, preferred_element_type=wide).astype(q.dtype)
