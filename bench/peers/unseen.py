"""Cases that nobody tuned for: a seed draws their modifiers, masks' parameters, sizes and dtypes. They are named unseen_0, unseen_1, ..."""

import functools
import random
from dataclasses import replace

from problems import Case
from shapes import DEFAULT, Shape

# Modifiers at any lengths; the others want their own, or say little beside these.
MODIFIERS = (
    *("full", "causal", "documents_causal_batch", "padding_batch", "window_heads", "prefix_1024", "dilated_2", "documents_skewed"),
    *("soft_cap", "soft_cap_causal", "alibi_causal", "alibi_causal_learned", "t5_buckets"),
)
DRAWN_WINDOW = "window_drawn"
# A call that says its mask by flags, or by a block mask.
PEERS = ("fa4", "flex_triton", "flex_flash", "torch_sdpa_cudnn", "torch_sdpa")
TOKENS = (4096, 32768)
DIMS = (40, 64, 72, 80, 96, 112, 128, 160, 192, 256)
GROUPS = (1, 1, 1, 2, 4, 7, 8)


@functools.cache
def drawn(count, seed):
    """name -> (modifier, shape), the same ones for the same seed; a greater count adds to them."""
    draw = random.Random(seed)
    return {f"unseen_{number}": _one(draw) for number in range(count)}


def _one(draw):
    dim = draw.choice(DIMS)
    group = draw.choice(GROUPS)
    kv_heads = draw.choice((1, 2, 4, 6, 8, 12)) if group > 1 else draw.randint(4, 32)
    # Lengths that fill no tile are half of them.
    queries = draw.randint(4, 64) * 128 if draw.random() < 0.5 else draw.randint(500, 8192)
    tokens = draw.randint(*TOKENS)
    # As many products as the default shape has at most, so that a case takes its share of the time.
    most = DEFAULT["batch"] * DEFAULT["heads"] * DEFAULT["seq"] ** 2 * DEFAULT["dim"]
    batch = max(1, min(tokens // queries, most // (kv_heads * group * queries**2 * dim)))
    dtype = draw.choice((None, None, "float16"))
    modifier = draw.choice((*MODIFIERS, DRAWN_WINDOW))
    window = draw.randint(16, max(17, queries // 2)) if modifier == DRAWN_WINDOW else None
    shape = Shape(batch=batch, heads=kv_heads * group, kv_heads=kv_heads, queries=queries, dim=dim, dtype=dtype)
    return modifier if window is None else (modifier, window), shape


def window_of(width):
    """The Case maker of a causal window of so many keys, or as large a part of the queries of a small copy."""

    def make(whole, shape, options):
        keys = max(1, round(width * shape.queries / whole.queries))
        return Case(None, lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & (q_idx - kv_idx < keys), plain={"causal": True, "window": keys})

    return make


def case(name, options, modifiers):
    """The case of that name for options.unseen and options.seed. `modifiers` are those of cases.py, by their names."""
    modifier, whole = drawn(options.unseen, options.seed)[name]
    shape = whole.scaled(options)
    if isinstance(modifier, tuple):
        modifier, width = modifier
        made = window_of(width)(whole, shape, options)
    else:
        made = modifiers[modifier](shape, options)
    return replace(made, name=name, modifier=modifier, shape_name="unseen", shape=shape, peers=PEERS)
