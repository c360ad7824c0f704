"""Score functions of the cases: name -> a function of the shape and the options that makes its Case."""

import math

import torch
from masks import causal
from problems import Case


def soft_cap_of(score, b, h, q_idx, kv_idx):
    return 50.0 * torch.tanh(score / 50.0)


def soft_cap(shape, options):
    return Case(soft_cap_of)


def soft_cap_causal(shape, options):
    return Case(soft_cap_of, causal)


def relative_bias(shape, options):
    return Case(lambda score, b, h, q_idx, kv_idx: score + (kv_idx - q_idx) * 0.01)


def alibi_of(slopes):
    return lambda score, b, h, q_idx, kv_idx: score + slopes[h] * (kv_idx - q_idx)


def slopes_of(shape, options):
    return torch.exp2(-8.0 * torch.arange(1, shape.heads + 1, device=options.device) / shape.heads)


def alibi(shape, options):
    return Case(alibi_of(slopes_of(shape, options)))


def alibi_causal(shape, options):
    return Case(alibi_of(slopes_of(shape, options)), causal)


def alibi_causal_learned(shape, options):
    slopes = slopes_of(shape, options).requires_grad_()
    return Case(alibi_of(slopes), causal, learned=(slopes,))


def bias_of(table):
    return lambda score, b, h, q_idx, kv_idx: score + table[h, q_idx, kv_idx]


def table_of(shape, options):
    return torch.randn(shape.heads, shape.queries, shape.keys, device=options.device).to(getattr(torch, shape.dtype))


def bias(shape, options):
    return Case(bias_of(table_of(shape, options)))


def bias_learned(shape, options):
    table = table_of(shape, options).requires_grad_()
    return Case(bias_of(table), learned=(table,))


def t5_bucket(q_idx, kv_idx):
    """T5's bucket, of 32, for keys before the query, without a direction (Raffel et al. 2020, transformers' T5Attention)."""
    distance = torch.clamp(q_idx - kv_idx, min=0)
    large = 16 + (torch.log(distance.to(torch.float32) / 16 + 1e-6) / math.log(8) * 16).to(torch.int32)
    return torch.where(distance < 16, distance, torch.clamp(large, max=31))


def t5_of(buckets):
    return lambda score, b, h, q_idx, kv_idx: score + buckets[h, t5_bucket(q_idx, kv_idx)]


def t5_buckets(shape, options):
    return Case(t5_of(torch.randn(shape.heads, 32, device=options.device)))


def t5_buckets_learned(shape, options):
    buckets = torch.randn(shape.heads, 32, device=options.device).requires_grad_()
    return Case(t5_of(buckets), learned=(buckets,))


def relative_table_learned(shape, options):
    table = (0.1 * torch.randn(shape.heads, 257, device=options.device)).requires_grad_()
    return Case(lambda score, b, h, q_idx, kv_idx: score + table[h, torch.clamp(kv_idx - q_idx, -128, 128) + 128], learned=(table,))


MODIFIERS = {
    make.__name__: make
    for make in (
        *(soft_cap, soft_cap_causal, relative_bias, alibi, alibi_causal, alibi_causal_learned),
        *(bias, bias_learned, t5_buckets, t5_buckets_learned, relative_table_learned),
    )
}
