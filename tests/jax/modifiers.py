"""Score functions that the tests run, each as a function of the arrays that it captures.

CASES: name -> (arrays, make): make(*arrays) gives (score_mod, mask_mod). The arrays fit SHAPE.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

BATCH, HEADS, SEQ_Q, SEQ_KV = SHAPE = (2, 4, 33, 40)


def normal(seed, *shape, dtype=np.float32):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def _plain():
    return None, None


def _alibi(slopes):
    return lambda score, b, h, q_idx, kv_idx: score + slopes[h] * (kv_idx - q_idx), causal


def _soft_cap(cap):
    return lambda score, b, h, q_idx, kv_idx: cap * jnp.tanh(score / cap), causal


def _relative_bias(bias):
    return lambda score, b, h, q_idx, kv_idx: score + bias[h, q_idx - kv_idx + SEQ_KV - 1], None


def _relative_bias_taken(bias):
    return lambda score, b, h, q_idx, kv_idx: score + jnp.take(bias, h, axis=0)[jnp.clip(q_idx - kv_idx, -8, 8) + 8], None


def _documents(query_ids, key_ids):
    def score_mod(score, b, h, q_idx, kv_idx):
        return jnp.where(query_ids[b, q_idx] == key_ids[b, kv_idx], score, -jnp.inf)

    return score_mod, None


def _full_bias(bias):
    return lambda score, b, h, q_idx, kv_idx: score + bias[b, h, q_idx, kv_idx], None


def _bfloat16_bias(bias):
    return lambda score, b, h, q_idx, kv_idx: score + bias[h][q_idx, kv_idx], None


def _temperature(logits):
    def score_mod(score, b, h, q_idx, kv_idx):
        return score * jax.nn.softplus(logits)[h] + 0.5 * jax.nn.relu(score)

    return score_mod, lambda b, h, q_idx, kv_idx: jnp.abs(q_idx - kv_idx) < 9


def _t5_buckets(table):
    def bucket(distance):
        far = jnp.log(jnp.maximum(distance, 1).astype(jnp.float32) / 4) / np.log(4.0) * 4
        return jnp.where(distance < 4, distance, jnp.minimum(4 + far.astype(jnp.int32), 7))

    return lambda score, b, h, q_idx, kv_idx: score + table[bucket(jnp.maximum(q_idx - kv_idx, 0)), h], None


def _bucket_search(edges, table):
    """searchsorted has no op: XLA computes the bucket of each (q, kv)."""

    def score_mod(score, b, h, q_idx, kv_idx):
        return score + table[jnp.searchsorted(edges, q_idx - kv_idx), h]

    return score_mod, None


def _gate(weights, factor=2.0, *, power=2):
    def score_mod(score, b, h, q_idx, kv_idx):
        near = jax.lax.cond(kv_idx % 3 == 1, lambda x: x * 0.5, lambda x: x + 0.25, score)
        return near * jax.nn.sigmoid(weights[b, h]) + factor * jnp.sin(score / 4) ** power

    return functools.partial(score_mod), lambda b, h, q_idx, kv_idx: (q_idx // 4 >= kv_idx // 4) | (kv_idx < 3)


def _filled(bias):
    def score_mod(score, b, h, q_idx, kv_idx):
        return score + bias.at[q_idx - kv_idx].get(mode="fill", fill_value=-1.5)

    return score_mod, None


CASES = {
    "plain": ((), _plain),
    "alibi": ((jnp.asarray([0.5, 0.25, 0.125, 0.0625], jnp.float32),), _alibi),
    "soft_cap": ((jnp.float32(3.0),), _soft_cap),
    "relative_bias": ((normal(1, HEADS, SEQ_Q + SEQ_KV - 1),), _relative_bias),
    "relative_bias_taken": ((normal(2, HEADS, 17),), _relative_bias_taken),
    "documents": (
        (jnp.asarray(np.arange(BATCH * SEQ_Q).reshape(BATCH, SEQ_Q) // 15), jnp.asarray(np.arange(BATCH * SEQ_KV).reshape(BATCH, -1) // 17)),
        _documents,
    ),
    "full_bias": ((normal(3, *SHAPE),), _full_bias),
    "bfloat16_bias": ((normal(4, HEADS, SEQ_Q, SEQ_KV, dtype=jnp.bfloat16),), _bfloat16_bias),
    "temperature": ((normal(5, HEADS),), _temperature),
    "t5_buckets": ((normal(6, 8, HEADS),), _t5_buckets),
    "bucket_search": ((jnp.asarray([-20, -5, 0, 3, 11], jnp.int32), normal(7, 6, HEADS)), _bucket_search),
    "gate": ((normal(8, BATCH, HEADS),), _gate),
    "filled": ((normal(9, 7),), _filled),
}
