"""The problems that scoremod and its peers are timed on, as functions that FlexAttention takes too. Sizes follow the options, so that a small copy of
each can be checked on a CPU."""

import math
from dataclasses import dataclass
from collections.abc import Callable

import torch

# A query's share of the keys where documents have these ends, as parts of the whole: few long ones and many short ones.
SKEWED_ENDS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.9)


@dataclass(frozen=True)
class Case:
    name: str
    score_mod: Callable | None = None
    mask_mod: Callable | None = None
    learned: tuple = ()  # tensors that the score function captures, whose gradients are wanted
    sdpa: dict | None = None  # scaled_dot_product_attention's words for it, where it has some
    mask_varies: tuple = (False, False)  # with the batch, with the head: what a block mask is made for
    sizes: tuple | None = None  # batch, query heads, KV heads, queries, keys, where they are not the options'
    backward: bool = True


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def soft_cap(score, b, h, q_idx, kv_idx):
    return 50.0 * torch.tanh(score / 50.0)


def relative_bias(score, b, h, q_idx, kv_idx):
    return score + (kv_idx - q_idx) * 0.01


def masks(seq, device):
    """name -> mask_mod; lengths in the proportions that they have at 4096."""
    documents = (torch.arange(seq, device=device) * 8 // seq).to(torch.int32)
    ends = torch.tensor([int(seq * end) for end in SKEWED_ENDS], device=device)
    skewed = torch.bucketize(torch.arange(seq, device=device), ends, right=True).to(torch.int32)
    eighth, quarter, width = seq // 8, seq // 4, max(math.isqrt(seq), 1)

    def neighbourhood(b, h, q_idx, kv_idx):
        rows, columns = q_idx // width - kv_idx // width, q_idx % width - kv_idx % width
        return (rows <= 4) & (rows >= -4) & (columns <= 4) & (columns >= -4)

    return {
        "window_512": lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & (q_idx - kv_idx < eighth),
        "documents": lambda b, h, q_idx, kv_idx: documents[q_idx] == documents[kv_idx],
        "documents_causal": lambda b, h, q_idx, kv_idx: (documents[q_idx] == documents[kv_idx]) & (q_idx >= kv_idx),
        "documents_skewed": lambda b, h, q_idx, kv_idx: skewed[q_idx] == skewed[kv_idx],
        "prefix_1024": lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) | (kv_idx < quarter),
        "padding_75": lambda b, h, q_idx, kv_idx: kv_idx < 3 * quarter,
        "neighbourhood_2d": neighbourhood,
        "dilated_2": lambda b, h, q_idx, kv_idx: (q_idx - kv_idx) % 2 == 0,
        "global_64_window_512": lambda b, h, q_idx, kv_idx: (
            (q_idx < seq // 64) | (kv_idx < seq // 64) | ((q_idx - kv_idx <= eighth) & (kv_idx - q_idx <= eighth))
        ),
    }


def t5_bucket(q_idx, kv_idx):
    """T5's bucket, of 32, for keys before the query, without a direction (Raffel et al. 2020, transformers' T5Attention)."""
    distance = torch.clamp(q_idx - kv_idx, min=0)
    large = 16 + (torch.log(distance.to(torch.float32) / 16 + 1e-6) / math.log(8) * 16).to(torch.int32)
    return torch.where(distance < 16, distance, torch.clamp(large, max=31))


def table_cases(heads, device):
    buckets = torch.randn(heads, 32, device=device)
    learned_buckets = torch.randn(heads, 32, device=device).requires_grad_()
    learned_distances = (0.1 * torch.randn(heads, 257, device=device)).requires_grad_()

    def learned_t5(score, b, h, q_idx, kv_idx):
        return score + learned_buckets[h, t5_bucket(q_idx, kv_idx)]

    def learned_relative(score, b, h, q_idx, kv_idx):
        return score + learned_distances[h, torch.clamp(kv_idx - q_idx, -128, 128) + 128]

    return [
        Case("t5_buckets", lambda score, b, h, q_idx, kv_idx: score + buckets[h, t5_bucket(q_idx, kv_idx)]),
        Case("t5_buckets_learned", learned_t5, learned=(learned_buckets,)),
        Case("relative_table_learned", learned_relative, learned=(learned_distances,)),
    ]


def bias_cases(heads, seq, device, dtype):
    slopes = torch.exp2(-8.0 * torch.arange(1, heads + 1, device=device) / heads)
    learned_slopes = slopes.clone().requires_grad_()
    bias = torch.randn(heads, seq, seq, device=device).to(dtype)
    learned_bias = bias.clone().requires_grad_()

    def alibi(score, b, h, q_idx, kv_idx):
        return score + slopes[h] * (kv_idx - q_idx)

    def learned_alibi(score, b, h, q_idx, kv_idx):
        return score + learned_slopes[h] * (kv_idx - q_idx)

    return [
        Case("alibi", alibi),
        Case("alibi_causal", alibi, causal),
        Case("alibi_causal_learned", learned_alibi, causal, learned=(learned_slopes,)),
        Case("bias", lambda score, b, h, q_idx, kv_idx: score + bias[h, q_idx, kv_idx]),
        Case("bias_learned", lambda score, b, h, q_idx, kv_idx: score + learned_bias[h, q_idx, kv_idx], learned=(learned_bias,)),
    ]


def decode_cases(scale):
    """Decode steps of up to 16 queries against long KV caches, with four query heads for each KV head. `scale` divides the lengths."""
    sizes = [(batch, 32, 8, queries, keys // scale) for batch, keys in ((16, 8192), (4, 32768)) for queries in (1, 4, 8, 16)]
    return [
        Case(f"decode_{queries}_of_{keys * scale}", sdpa={"enable_gqa": True}, sizes=(batch, heads, groups, queries, keys), backward=False)
        for batch, heads, groups, queries, keys in sizes
    ]


def cases(options):
    """All of them, the most telling first, so that a run that is cut short has those."""
    seq, device = options.seq, options.device
    masked = [Case(name, None, mask) for name, mask in masks(seq, device).items()]
    plain = [
        Case("full", sdpa={}),
        Case("causal", None, causal, sdpa={"is_causal": True}),
        Case("soft_cap", soft_cap),
        Case("soft_cap_causal", soft_cap, causal),
        Case("relative_bias", relative_bias),
    ]
    biases = bias_cases(options.heads, seq, device, options.dtype)
    return plain[:4] + masked + biases[1:3] + table_cases(options.heads, device) + decode_cases(4096 // seq or 1) + plain[4:] + biases[:1] + biases[3:]
