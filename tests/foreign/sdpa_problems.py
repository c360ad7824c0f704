"""Random attention problems with the distribution that cuDNN's frontend publishes for its tests (test/python/test_mhas_v2.py), drawn anew.

Tensors are dense, padded or varlen, with sequences of length 0, MHA, GQA or MQA heads, and sinks. Masks are causal, windows or bands along either
diagonal. Dimensions stand in any order, with gaps between them. Nothing may depend on the strides of extents of 1.
"""

import dataclasses
import random

SPECIAL_DIMS = ((64, 64), (128, 128), (192, 128), (256, 256))
ABSURD_STRIDES = (0, 3331333, 99990001)


@dataclasses.dataclass(frozen=True)
class SdpaProblem:
    """A problem; shapes and strides are those of [batch, heads, sequence, dim]."""

    seed: int
    batch: int
    heads_q: int
    heads_kv: int
    seq_q: int
    seq_kv: int
    dim_qk: int
    dim_v: int
    dtype: str
    left: int | None  # keys after the query's number less this; None: all
    right: int | None  # keys up to the query's number and this; None: all
    bottom_right: bool  # whether the last query stands at the last key
    kind: str  # full, padded or varlen
    lengths_q: tuple[int, ...]
    lengths_kv: tuple[int, ...]
    sink: bool
    strides: tuple[tuple[int, ...], ...]  # of q, k and v

    @property
    def shapes(self):
        keys = (self.batch, self.heads_kv, self.seq_kv)
        return (self.batch, self.heads_q, self.seq_q, self.dim_qk), (*keys, self.dim_qk), (*keys, self.dim_v)


def draw(seed, longest=8192, widest=256):
    """The problem of a seed.

    Parameters
    ----------
    seed : int
        Equal seeds and limits give equal problems.
    longest : int
        The most queries or keys.
    widest : int
        The largest head dim.
    """
    rng = random.Random(seed)
    batch = rng.choice((1, 4)) if rng.random() < 0.5 else rng.randint(1, 8)
    seq_q, seq_kv = _lengths(rng, longest)
    dim_qk, dim_v = _dims(rng, widest)
    heads_q, heads_kv = _heads(rng)
    dtype = rng.choice(("float16", "bfloat16", "bfloat16"))
    bottom_right = rng.random() < 0.5
    left, right = _band(rng, seq_kv, bottom_right)
    kind = rng.choice(("full", "padded", "varlen"))
    lengths = [tuple(most if kind == "full" else 0 if rng.random() < 0.1 else rng.randint(1, most) for _ in range(batch)) for most in (seq_q, seq_kv)]
    sink = rng.random() < 0.25
    plain = SdpaProblem(seed, batch, heads_q, heads_kv, seq_q, seq_kv, dim_qk, dim_v, dtype, left, right, bottom_right, kind, *lengths, sink, ())
    return dataclasses.replace(plain, strides=_strides(rng, plain.shapes))


def _lengths(rng, longest):
    seq_q, seq_kv = rng.randint(1, longest), rng.randint(1, longest)
    (relation,) = rng.choices(("equal", "fewer", "more"), (5, 10, 3))
    if relation == "equal":
        return seq_kv, seq_kv
    if relation == "fewer":
        return min(seq_q, seq_kv), seq_kv
    return min(seq_kv + rng.randint(1, seq_kv), longest), seq_kv


def _dims(rng, widest):
    special = [dims for dims in SPECIAL_DIMS if max(dims) <= widest]
    if special and rng.random() < 0.5:
        return rng.choice(special)
    dim_qk, dim_v = (8 * rng.randint(1, widest // 8) for _ in range(2))
    return max(dim_qk, dim_v), dim_qk if rng.random() < 0.5 and dim_qk >= dim_v else dim_v


def _heads(rng):
    heads = rng.randint(1, 8)
    (kind,) = rng.choices(("mha", "gqa", "mqa"), (1, 4, 1))
    if kind == "mha":
        return heads, heads
    return heads, 1 if kind == "mqa" else rng.choice([n for n in range(1, heads + 1) if heads % n == 0])


def _band(rng, seq_kv, bottom_right):
    half = max(1, seq_kv // 2)
    (mask,) = rng.choices(("causal", "left", "right", "band", "none"), (10, 5, 5, 10, 10))
    return {
        "causal": (None, 0),
        "left": (rng.randint(1, half), 0),
        "right": (None if bottom_right else 1, rng.randint(0, half)),
        "band": (rng.randint(1, half), rng.randint(1, half)),
        "none": (None, None),
    }[mask]


def _strides(rng, shapes):
    """Dimensions in a random order, one for the query and one for key and value, half of the time with gaps."""
    orders = [[*rng.sample(range(3), 3), 3] for _ in range(2)]
    gapped = [rng.random() < 0.5 for _ in range(2)]
    found = []
    for i, shape in enumerate(shapes):
        side = min(i, 1)
        gaps = [rng.randint(0, 8), rng.randint(0, 8), rng.randint(0, 8), 8 * rng.randint(0, 2)] if gapped[side] else [0] * 4
        strides, current = [0, 0, 0, 1], 1
        for inner, outer in zip(orders[side][:0:-1], orders[side][-2::-1]):
            current *= shape[inner] + gaps[inner]
            strides[outer] = max(current, rng.choice(ABSURD_STRIDES)) if shape[outer] == 1 else current
        found.append(tuple(strides))
    return tuple(found)
