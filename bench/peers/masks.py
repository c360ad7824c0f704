"""Masks of the cases: name -> a function of the shape and the options that makes its Case. Lengths are in the proportions that they have at 4096."""

import math
from dataclasses import replace

import torch
from problems import BACKWARD, FORWARD, Case

VARLEN = ("varlen_lognormal_causal", "varlen_one_long_causal", "varlen_lognormal", "varlen_one_long")
DETERMINISTIC = ("causal_deterministic", "full_deterministic", "window_512_deterministic", "documents_causal_deterministic")
VARYING = ("padding_batch", "documents_causal_batch", "window_heads", "half_causal_heads")
# A query's share of the keys where documents have these ends, as parts of the whole: few long ones and many short ones.
SKEWED_ENDS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.9)


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def unit(options):
    """As many keys as 512 of 4096 are."""
    return options.seq // 8


def full(shape, options):
    return Case(plain={"causal": False, "window": None})


def causal_queries(shape, options):
    return Case(None, causal, plain={"causal": True, "window": None})


def window_512(shape, options):
    keys = unit(options)
    return Case(None, lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & (q_idx - kv_idx < keys), plain={"causal": True, "window": keys})


def numbers(ends, total, device):
    """int32 [total]: the number of the sequence that a token is in, of sequences with these ends."""
    return torch.bucketize(torch.arange(total, device=device), torch.tensor(ends, device=device), right=True).to(torch.int32)


def documents_of(ids):
    return lambda b, h, q_idx, kv_idx: ids[q_idx] == ids[kv_idx]


def causal_documents_of(ids):
    return lambda b, h, q_idx, kv_idx: (ids[q_idx] == ids[kv_idx]) & (q_idx >= kv_idx)


def eight(shape, options):
    return (torch.arange(shape.queries, device=options.device) * 8 // shape.queries).to(torch.int32)


def documents(shape, options):
    return Case(None, documents_of(eight(shape, options)))


def documents_causal(shape, options):
    return Case(None, causal_documents_of(eight(shape, options)))


def documents_skewed(shape, options):
    ends = [int(shape.queries * end) for end in SKEWED_ENDS]
    return Case(None, documents_of(numbers(ends, shape.queries, options.device)))


def documents_causal_batch(shape, options):
    """Packed rows of a training step: documents end elsewhere in each batch."""
    generator = torch.Generator().manual_seed(options.seed)
    ends = torch.rand(shape.batch, 7, generator=generator).sort().values * shape.queries
    ids = torch.stack([numbers(row.int().tolist(), shape.queries, options.device) for row in ends])
    return Case(None, lambda b, h, q_idx, kv_idx: (ids[b, q_idx] == ids[b, kv_idx]) & (q_idx >= kv_idx), mask_varies=(True, False))


def padding_batch(shape, options):
    shares = torch.linspace(1.0, 0.3, shape.batch)
    lengths = (shares * shape.keys).to(torch.int32).to(options.device)
    return Case(None, lambda b, h, q_idx, kv_idx: kv_idx < lengths[b], mask_varies=(True, False))


def window_heads(shape, options):
    """A window for each head, from a sixteenth of the keys to all."""
    widths = (shape.keys * torch.exp2(-4.0 * torch.arange(shape.heads) / shape.heads)).to(torch.int32).to(options.device)
    return Case(None, lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & (q_idx - kv_idx < widths[h]), mask_varies=(False, True))


def half_causal_heads(shape, options):
    half = shape.heads // 2
    return Case(None, lambda b, h, q_idx, kv_idx: (h < half) | (q_idx >= kv_idx), mask_varies=(False, True))


def prefix_1024(shape, options):
    quarter = shape.keys // 4
    return Case(None, lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) | (kv_idx < quarter))


def padding_75(shape, options):
    kept = 3 * (shape.keys // 4)
    return Case(None, lambda b, h, q_idx, kv_idx: kv_idx < kept)


def neighbourhood_2d(shape, options):
    width = max(math.isqrt(shape.queries), 1)

    def neighbourhood(b, h, q_idx, kv_idx):
        rows, columns = q_idx // width - kv_idx // width, q_idx % width - kv_idx % width
        return (rows <= 4) & (rows >= -4) & (columns <= 4) & (columns >= -4)

    return Case(None, neighbourhood)


def dilated_2(shape, options):
    return Case(None, lambda b, h, q_idx, kv_idx: (q_idx - kv_idx) % 2 == 0)


def global_64_window_512(shape, options):
    keys, first = unit(options), options.seq // 64

    def global_window(b, h, q_idx, kv_idx):
        return (q_idx < first) | (kv_idx < first) | ((q_idx - kv_idx <= keys) & (kv_idx - q_idx <= keys))

    return Case(None, global_window)


def lengths_of(name, total, seed):
    """Lengths of sequences that are `total` tokens together: 32 of a lognormal distribution, or one of half of the tokens beside 32 equal ones."""
    if name == "one_long":
        short = total // 64
        return (total - 32 * short, *(short for _ in range(32)))
    weights = torch.exp(torch.randn(32, generator=torch.Generator().manual_seed(seed)))
    lengths = [max(1, int(total * weight / weights.sum())) for weight in weights]
    lengths[lengths.index(max(lengths))] += total - sum(lengths)
    return tuple(lengths)


def varlen(name, is_causal):
    def make(shape, options):
        lengths = lengths_of(name, shape.queries, options.seed)
        ids = numbers(torch.tensor(lengths).cumsum(0).tolist(), shape.queries, options.device)
        packed = causal_documents_of(ids) if is_causal else documents_of(ids)
        return Case(None, causal if is_causal else None, plain={"causal": is_causal, "window": None}, lengths=lengths, packed_mask=packed)

    return make


def deterministic(make):
    def made(shape, options):
        return replace(make(shape, options), deterministic=True, directions=(BACKWARD,))

    return made


def decode(shape, options):
    return Case(plain={"causal": False, "window": None}, directions=(FORWARD,))


MODIFIERS = {
    "full": full,
    "causal": causal_queries,
    "window_512": window_512,
    "documents": documents,
    "documents_causal": documents_causal,
    "documents_skewed": documents_skewed,
    "documents_causal_batch": documents_causal_batch,
    "padding_batch": padding_batch,
    "window_heads": window_heads,
    "half_causal_heads": half_causal_heads,
    "prefix_1024": prefix_1024,
    "padding_75": padding_75,
    "neighbourhood_2d": neighbourhood_2d,
    "dilated_2": dilated_2,
    "global_64_window_512": global_64_window_512,
    "varlen_lognormal": varlen("lognormal", False),
    "varlen_lognormal_causal": varlen("lognormal", True),
    "varlen_one_long": varlen("one_long", False),
    "varlen_one_long_causal": varlen("one_long", True),
    "full_deterministic": deterministic(full),
    "causal_deterministic": deterministic(causal_queries),
    "window_512_deterministic": deterministic(window_512),
    "documents_causal_deterministic": deterministic(documents_causal),
    "decode": decode,
}
