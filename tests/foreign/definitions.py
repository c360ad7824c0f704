"""Score and mask functions that other projects publish and test, written anew for PyTorch and JAX alike.

SCORES and MASKS are those of FlashAttention-4's tests, GYM is what attention-gym has. Windows and blocks are smaller here than there, so that tensors
of a test have both kinds of scores. `f` is torch or jax.numpy, and `real(x, score)` makes floats of integers in the score's dtype.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np


@dataclasses.dataclass
class Definition:
    """make(f, real, *floats, *integers) gives (score_mod, mask_mod); arrays(random, sizes) gives both lists of arrays."""

    make: Callable
    arrays: Callable = lambda random, sizes: ([], [])
    heads: tuple[int, int] = (4, 2)
    seq: tuple[int, int] = (33, 40)
    batch: int = 2

    @property
    def sizes(self):
        return (self.batch, self.heads[0], *self.seq)


def score_of(function):
    """A definition's make for score_mod(f, real, arrays, score, b, h, q, k)."""
    return lambda f, real, *arrays: (lambda score, b, h, q_idx, kv_idx: function(f, real, arrays, score, b, h, q_idx, kv_idx), None)


def mask_of(function):
    """A definition's make for mask_mod(f, arrays, b, h, q, k)."""
    return lambda f, real, *arrays: (None, lambda b, h, q_idx, kv_idx: function(f, arrays, b, h, q_idx, kv_idx))


def masked(keep):
    """A score function that gives -inf where keep(q, k) is false."""
    return score_of(lambda f, real, arrays, score, b, h, q, k: f.where(keep(q, k), score, -math.inf))


def normal(*axes):
    """Arrays of normal numbers, one for each tuple of places in (batch, heads, seq_q, seq_kv) or of sizes."""
    return lambda random, sizes: ([_normal(random, sizes, names) for names in axes], [])


def _normal(random, sizes, names):
    by_name = dict(zip("bhqk", sizes))
    return random.normal(size=[by_name.get(name, name) for name in names]).astype(np.float32)


def _lengths(random, batch, most):
    return random.integers(1, most + 1, batch)


def _starts(lengths):
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def packed(biases, *others):
    """Arrays of varlen sequences: per-token biases of queries ("q") or keys ("k"), others as in normal(), and both sides' cu_seqlens."""

    def arrays(random, sizes):
        starts = {"q": _starts(_lengths(random, sizes[0], sizes[2])), "k": _starts(_lengths(random, sizes[0], sizes[3]))}
        # Positions up to the longest sequence are read, beyond the end of the last.
        floats = [_normal(random, sizes, (int(starts[side][-1]) + max(sizes[2:]),)) for side in biases]
        return floats + [_normal(random, sizes, names) for names in others], [starts["q"], starts["k"]]

    return arrays


def _last(f, starts, b, index):
    """The token of a varlen sequence's position, or of its last one."""
    return starts[:-1][b] + f.minimum(index, starts[1:][b] - starts[:-1][b] - 1)


def _multi_buffer(f, real, a, score, b, h, q, k):
    q_bias, k_bias, batch_bias, head_scale, table, starts_q, starts_k = a
    near = f.clip(q - k + 8, 0, 16)
    return score * head_scale[h] + batch_bias[b] + q_bias[starts_q[:-1][b] + q] + k_bias[starts_k[:-1][b] + k] + table[near] * 0.1


SCORES = {
    "identity": Definition(score_of(lambda f, real, a, score, b, h, q, k: score)),
    "causal": Definition(masked(lambda q, k: q >= k)),
    "rel_bias": Definition(score_of(lambda f, real, a, score, b, h, q, k: score + f.abs(q - k))),
    "rel_bias_x2": Definition(score_of(lambda f, real, a, score, b, h, q, k: score + 2 * f.abs(q - k))),
    "times_two": Definition(score_of(lambda f, real, a, score, b, h, q, k: score * 2)),
    "alibi": Definition(score_of(lambda f, real, a, score, b, h, q, k: score - f.exp2(-real(h + 1, score)) * f.abs(q - k))),
    "sliding_window": Definition(masked(lambda q, k: abs(q - k) <= 9)),
    "block_diagonal": Definition(masked(lambda q, k: q // 8 == k // 8)),
    "causal_v2": Definition(masked(lambda q, k: q - k >= 0)),
    "batch_bias": Definition(score_of(lambda f, real, a, score, b, h, q, k: score + a[0][b]), normal("b")),
    "dual_buffer": Definition(score_of(lambda f, real, a, score, b, h, q, k: score + a[0][h] + a[1][q]), normal("h", "q")),
    "packed_kv_bias": Definition(score_of(lambda f, real, a, score, b, h, q, k: score + a[0][_last(f, a[2], b, k)]), packed("k")),
    "packed_q_bias": Definition(score_of(lambda f, real, a, score, b, h, q, k: score + a[0][_last(f, a[1], b, q)]), packed("q")),
    "packed_rel_plus_kv_bias": Definition(
        score_of(lambda f, real, a, score, b, h, q, k: score + real(f.abs(q - k), score) * 0.1 + a[0][_last(f, a[2], b, k)]), packed("k")
    ),
    "packed_q_and_kv_bias": Definition(
        score_of(lambda f, real, a, score, b, h, q, k: score + a[0][_last(f, a[2], b, q)] + a[1][_last(f, a[3], b, k)]), packed("qk")
    ),
    "packed_logical_rel_plus_kv_bias": Definition(
        score_of(lambda f, real, a, score, b, h, q, k: score + real(f.abs(q - k), score) * 0.01 + a[0][a[2][:-1][b] + k]), packed("k")
    ),
    "stress_complex_arithmetic": Definition(
        score_of(
            lambda f, real, a, score, b, h, q, k: score + real(f.abs(q - k), score) * 0.001 + a[0][a[1][:-1][b] + q] * (real((b + 1) * (h + 1), score) * 0.001)
        ),
        packed("q"),
    ),
    "stress_squared_distance": Definition(
        score_of(
            lambda f, real, a, score, b, h, q, k: (
                score + real((q - k) * (q - k), score) * 0.0001 + a[0][a[1][:-1][b] + q] * (real((b + 1) * (h + 1), score) * 0.001)
            )
        ),
        packed("q"),
    ),
    "stress_conditional_mask": Definition(
        score_of(
            lambda f, real, a, score, b, h, q, k: f.where(
                (q >= k) & (f.abs(a[1][:-1][b] + q - a[2][:-1][b] - k) <= 20), score + a[0][a[2][:-1][b] + k], -math.inf
            )
        ),
        packed("k"),
    ),
    "stress_multi_buffer": Definition(score_of(_multi_buffer), packed("qk", "b", "h", (17,))),
    "stress_global_offset": Definition(score_of(lambda f, real, a, score, b, h, q, k: score + a[0][a[2][:-1][b] + k]), packed("k")),
    "stress_xor_pattern": Definition(
        score_of(lambda f, real, a, score, b, h, q, k: score + real((q ^ k) & 0xFF, score) * 0.001 + a[0][a[2][:-1][b] + k] * 0.1), packed("k")
    ),
    "debug_global_idx": Definition(score_of(lambda f, real, a, score, b, h, q, k: score + real(a[1][:-1][b] + k, score) * 0.001), packed("")),
    "soft_cap": Definition(score_of(lambda f, real, a, score, b, h, q, k: 3.0 * f.tanh(score / 3.0))),
    "squared": Definition(score_of(lambda f, real, a, score, b, h, q, k: score * score)),
}


def _documents(shape):
    """Random documents of consecutive tokens, for each row of the shape's leading places."""

    def arrays(random, sizes):
        by_name = dict(zip("bhqk", sizes))
        extents = [by_name.get(name, name) for name in shape]
        return [], [np.sort(random.integers(0, 4, extents), axis=-1).astype(np.int32)]

    return arrays


def _causal(offset):
    return mask_of(lambda f, a, b, h, q, k: k <= q + offset)


def _window(left, right, offset):
    return mask_of(lambda f, a, b, h, q, k: (k >= q + offset - left) & (k <= q + offset + right))


def _thresholds(random, sizes):
    return [], [random.integers(0, sizes[3], sizes[3]).astype(np.int32)]


def _packed_documents(random, sizes):
    _, starts = packed("")(random, sizes)
    total = max(int(each[-1]) for each in starts) + max(sizes[2:])
    return [], [np.sort(random.integers(0, 8, total)).astype(np.int32), *starts]


def _packed_thresholds(random, sizes):
    _, starts = packed("")(random, sizes)
    total = int(starts[1][-1]) + sizes[3]
    return [], [random.integers(0, total, total).astype(np.int32), *starts]


MASKS = {
    "causal": Definition(_causal(7)),
    "causal_more_queries": Definition(_causal(-7), seq=(40, 33)),  # the first queries have no key
    "block_causal": Definition(_causal(0), seq=(40, 40)),
    "sliding_window": Definition(_window(5, 5, 7)),
    "sliding_window_one_sided": Definition(_window(6, 0, 7)),
    "block_diagonal": Definition(mask_of(lambda f, a, b, h, q, k: q // 16 == k // 16)),
    "mini_causal": Definition(mask_of(lambda f, a, b, h, q, k: q % 16 >= k % 16)),
    "prefix_lm": Definition(mask_of(lambda f, a, b, h, q, k: ((q < 12) & (k < 12)) | (q >= k))),
    "dilated_sliding_window": Definition(mask_of(lambda f, a, b, h, q, k: (q >= k) & (q - k < 20) & ((q - k) % 2 == 0))),
    "document": Definition(mask_of(lambda f, a, b, h, q, k: a[0][b, h, q] == a[0][b, h, k]), _documents("bhk"), seq=(40, 40)),
    "ima": Definition(mask_of(lambda f, a, b, h, q, k: k >= a[0][k]), _thresholds),
    "global_packed_document": Definition(mask_of(lambda f, a, b, h, q, k: a[0][a[1][:-1][b] + q] == a[0][a[2][:-1][b] + k]), _packed_documents),
    "global_ima": Definition(mask_of(lambda f, a, b, h, q, k: a[2][:-1][b] + k >= a[0][a[2][:-1][b] + k]), _packed_thresholds),
    "global_causal_window": Definition(
        mask_of(lambda f, a, b, h, q, k: (a[1][:-1][b] + k <= a[0][:-1][b] + q) & (a[0][:-1][b] + q - a[1][:-1][b] - k <= 11)), packed("")
    ),
}

SUITES = {"FlashAttention-4 score_mod": SCORES, "FlashAttention-4 mask_mod": MASKS}
