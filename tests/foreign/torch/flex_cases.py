"""Calls with the features that PyTorch's tests of FlexAttention try, written anew from its documentation.

CASES: name -> case(random) -> ((q, k, v), score_mod, mask_mod, options). Sizes are small, and lengths are no multiples of a block.
"""

import functools
import math

import torch
from torch.nn.attention.flex_attention import and_masks, noop_mask, or_masks

BATCH, HEADS, QUERIES, KEYS, DIM = 2, 4, 37, 45, 16


def tensors(random, batch=BATCH, heads=(HEADS, HEADS), seq=(QUERIES, KEYS), dim=(DIM, DIM)):
    shapes = ((batch, heads[0], seq[0], dim[0]), (batch, heads[1], seq[1], dim[0]), (batch, heads[1], seq[1], dim[1]))
    return [torch.randn(shape, generator=random) for shape in shapes]


def normal(random, *shape):
    return torch.randn(shape, generator=random)


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def score_case(make, **sizes):
    """make(random) gives score_mod."""
    return lambda random: (tensors(random, **sizes), make(random), None, {})


def mask_case(make, **sizes):
    """make(random) gives mask_mod."""
    return lambda random: (tensors(random, **sizes), None, make(random), {})


def _per_head(random):
    slopes = normal(random, HEADS)
    return lambda score, b, h, q, k: score + slopes[h] * (k - q)


def _scalar(random):
    factor = torch.tensor(0.7)
    return lambda score, b, h, q, k: score * factor


def _two_level_index(random):
    places = torch.randint(0, 5, (KEYS,), generator=random)
    table = normal(random, HEADS, 5)
    return lambda score, b, h, q, k: score + table[h, places[k]]


def _whole_bias(random):
    bias = normal(random, BATCH, HEADS, QUERIES, KEYS)
    return lambda score, b, h, q, k: score + bias[b, h, q, k]


def _same_buffer_twice(random):
    table = normal(random, BATCH, max(QUERIES, KEYS))
    return lambda score, b, h, q, k: score + table[b, q] * table[b, k]


def _partial(random):
    def scaled(score, b, h, q, k, factor):
        return score * factor

    return functools.partial(scaled, factor=0.5)


def _nested_functions(random):
    slopes, inner = normal(random, HEADS), _scalar(random)
    return lambda score, b, h, q, k: inner(score * 2.0, b, h, q, k) + slopes[h]


def _minus_infinity(random):
    return lambda score, b, h, q, k: torch.where((q - k).abs() <= 6, score, -math.inf)


def _all_minus_infinity(random):
    return lambda score, b, h, q, k: torch.where(q % 4 == 1, -math.inf, score)


def _squared(random):
    return lambda score, b, h, q, k: score * score * 0.5


def _remainders(random):
    return lambda score, b, h, q, k: torch.where((q % 3 == 0) & (k % 2 == 1), score * 2, score)


def _integers(random):
    return lambda score, b, h, q, k: score + (b * 7 + h * 3 - q // 4 + k // 5)


def _of_silu(random):
    return lambda score, b, h, q, k: torch.nn.functional.silu(score) + torch.sigmoid(score)


def _documents(random):
    ids = torch.randint(0, 3, (BATCH, KEYS), generator=random).sort(dim=-1).values
    return lambda b, h, q, k: ids[b, q] == ids[b, k]


def _lengths(random):
    lengths = torch.tensor([0, 29], dtype=torch.int32)
    return lambda b, h, q, k: k < lengths[b]


def _kept_table(random):
    kept = torch.rand(HEADS, QUERIES, KEYS, generator=random) < 0.3
    return lambda b, h, q, k: kept[h, q, k]


def _expanded_and_transposed(random):
    q = normal(random, BATCH, QUERIES, HEADS, DIM).transpose(1, 2)
    k = normal(random, BATCH, 1, KEYS, DIM).expand(-1, HEADS, -1, -1)
    v = normal(random, BATCH, HEADS, KEYS, 2 * DIM)[..., ::1][..., DIM:]
    return (q, k, v), None, causal, {}


def _with_options(mask, sizes=None, **options):
    return lambda random: (tensors(random, **(sizes or {})), None, mask, options)


CASES = {
    "captured vector": score_case(_per_head),
    "captured scalar": score_case(_scalar),
    "index of a captured index": score_case(_two_level_index),
    "captured bias of all scores": score_case(_whole_bias),
    "captured tensor read twice": score_case(_same_buffer_twice),
    "functools.partial": score_case(_partial),
    "nested functions": score_case(_nested_functions),
    "scores of -inf": score_case(_minus_infinity),
    "rows of -inf": score_case(_all_minus_infinity),
    "square": score_case(_squared),
    "remainders of indices": score_case(_remainders),
    "sums of indices": score_case(_integers),
    "activations": score_case(_of_silu),
    "another dim of value": score_case(_per_head, dim=(16, 24)),
    "GQA": score_case(_per_head, heads=(HEADS, 2)),
    "MQA": score_case(_per_head, heads=(HEADS, 1)),
    "one query": score_case(_per_head, seq=(1, KEYS)),
    "causal": mask_case(lambda random: causal),
    "documents": mask_case(_documents, seq=(KEYS, KEYS)),
    "lengths, one of 0": mask_case(_lengths),
    "captured mask": mask_case(_kept_table),
    "rows without a key": mask_case(lambda random: lambda b, h, q, k: (q >= k) & (q % 5 != 2)),
    "no key at all": mask_case(lambda random: lambda b, h, q, k: q < k - 1000),
    "noop_mask": mask_case(lambda random: noop_mask),
    "and_masks": mask_case(lambda random: and_masks(causal, lambda b, h, q, k: q - k <= 9)),
    "or_masks": mask_case(lambda random: or_masks(causal, lambda b, h, q, k: k < 5)),
    "mask of a head": mask_case(lambda random: lambda b, h, q, k: q - k <= h * 4),
    "GQA with a mask": mask_case(lambda random: causal, heads=(HEADS, 2)),
    "strides": _expanded_and_transposed,
    "scale": _with_options(causal, scale=0.3),
    "scale of 0": _with_options(causal, scale=0.0),
    "more queries than keys": _with_options(causal, sizes={"seq": (KEYS, QUERIES)}),
}
