"""Problems of TransformerEngine's fused_attn, drawn from the matrix that its tests publish: masks, layouts, biases, softmaxes, heads and windows.

A problem's rows are lists of sequences, and its keys are kept sequence by sequence: nothing here reads how scoremod makes a mask of them.
"""

import dataclasses

import numpy as np

MASKS = ("no_mask", "padding", "causal", "padding_causal", "causal_bottom_right", "padding_causal_bottom_right")
PACKED = {"{0}3hd": 3, "{0}hd_{0}2hd": 2, "{0}hd_{0}hd_{0}hd": 1}  # name -> how many of q, k and v are packed into one array
LAYOUTS = {name.format(letters): (letters, count) for letters in ("bs", "sb", "t") for name, count in PACKED.items()}
# TransformerEngine wants sequences, so a mask with padding, where tokens have a dimension of their own ("t").
CASES = [(mask, layout) for mask in MASKS for layout in LAYOUTS if layout[0] != "t" or "padding" in mask]
BIASES = (None, "1hss", "11ss", "b1ss", "bhss")
SOFTMAXES = ("vanilla", "off_by_one", "learnable")
WINDOWS = (None, (-1, -1), (3, 0), (4, 2), (-1, 3))
DTYPES = ("float32", "float16", "bfloat16")
BATCH, HEADS = 2, 4


@dataclasses.dataclass(frozen=True)
class TeProblem:
    """One attention. sequences: for each row those that it has, (first query, queries, first key, keys)."""

    mask: str
    layout: str
    heads_kv: int
    seq: tuple[int, int]
    dims: tuple[int, int]
    bias: str | None
    bias_type: str
    softmax: str
    window: tuple[int, int] | None
    scale: float | None
    dtype: str
    sequences: tuple[tuple[tuple[int, int, int, int], ...], ...]
    described_by: str  # how a SequenceDescriptor says the sequences

    @property
    def shapes(self):
        keys = (BATCH, self.seq[1], self.heads_kv)
        return (BATCH, self.seq[0], HEADS, self.dims[0]), (*keys, self.dims[0]), (*keys, self.dims[1])

    @property
    def bias_shape(self):
        rows, heads = (BATCH if "b" in self.bias else 1), (HEADS if "h" in self.bias else 1)
        return (rows, heads, *self.seq)

    @property
    def factor(self):
        return self.dims[0] ** -0.5 if self.scale is None else self.scale

    def kept(self):
        """[batch, 1, queries, keys]: whether the query sees the key."""
        kept = np.zeros((BATCH, 1, *self.seq), bool)
        left, right = (bound if bound >= 0 else 10**6 for bound in self.window or (-1, -1))
        if "causal" in self.mask:
            right = 0
        for row, sequences in zip(kept[:, 0], self.sequences):
            for first_query, queries, first_key, keys in sequences:
                shift = keys - queries if "bottom_right" in self.mask else 0
                ahead = np.arange(keys) - np.arange(queries)[:, None] - shift
                row[first_query : first_query + queries, first_key : first_key + keys] = (ahead <= right) & (-ahead <= left)
        return kept


def draw(mask, layout, random):
    """A problem of a mask and a layout; the rest is drawn."""
    letters, packed = LAYOUTS[layout]

    def one_of(*values):
        return values[random.integers(len(values))]

    seq = int(random.integers(9, 25))
    seq = (seq, seq if packed == 3 else int(random.integers(9, 25)))
    dims = one_of((16, 16), (8, 8)) if packed > 1 else one_of((16, 16), (16, 8), (8, 16))
    tokens = letters == "t"
    rows = tuple(_row(random, seq, tokens) if "padding" in mask else ((0, seq[0], 0, seq[1]),) for _ in range(BATCH))
    bias = None if tokens else one_of(*BIASES)  # a bias of rows that have several sequences has no meaning there
    return TeProblem(
        mask=mask,
        layout=layout,
        heads_kv=HEADS if packed == 3 else one_of(1, 2, 4),
        seq=seq,
        dims=dims,
        bias=bias,
        bias_type="no_bias" if bias is None else one_of("post_scale_bias", "post_scale_bias", "pre_scale_bias"),
        softmax=one_of(*SOFTMAXES),
        window=one_of(*WINDOWS),
        scale=one_of(None, None, 0.3),
        dtype=one_of(*DTYPES),
        sequences=rows,
        described_by=one_of("offsets", "segments") if tokens else one_of("lengths", "segments"),
    )


def _row(random, seq, several):
    """One sequence from the row's beginning, or several with gaps between them."""
    count = int(random.integers(1, 4)) if several else 1
    places = []
    for each in seq:
        lengths = random.multinomial(each - 3 - count, [1 / count] * count) + 1
        gaps = random.integers(0, 2, count) if several else [0]
        firsts = np.cumsum(gaps) + np.cumsum(lengths) - lengths
        places.append(list(zip(firsts, lengths)))
    return tuple((int(fq), int(q), int(fk), int(k)) for (fq, q), (fk, k) in zip(*places))


def arrays(problem, random):
    """name -> float32 array: q, k and v, the gradient of the output, and the bias and the softmax's offsets where the problem has them."""
    q, k, v = problem.shapes
    shapes = {"q": q, "k": k, "v": v, "d_o": (*q[:3], v[3])}
    shapes |= {"bias": problem.bias_shape} if problem.bias else {}
    shapes |= {"offset": (1, HEADS, 1, 1)} if problem.softmax == "learnable" else {}
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
