"""The gradient of a log-sum-exp, as columns that a backward's tensors get: fused attention takes none beside that of its output."""

# Head dims of fused attention are multiples of 8.
COLUMNS = 8
# So many numbers of 8 digits, as bfloat16 has them, add up to a float32.
_PARTS = 3


def with_lse_columns(numpy, v, o, d_o, d_lse, rounded, *, by_row_sum):
    """(v, o, d_o) whose attention's backward has d loss / d lse in it; the gradient of v has COLUMNS columns more, which mean nothing.

    numpy: jax.numpy or torch, whose arrays these are. d_lse: float32, in the order of d_o's dimensions, with one of size 1 for the head dim.
    rounded: the numbers of d_o's dtype that are nearest to some, and the same in float32.

    The gradient of a modified score is p * (dP - rowsum(d_o * o) + d_lse), where dP = d_o v^T. With columns of ones in v, d_lse in d_o and
    zeros in o, dP grows by d_lse and the sum of the row stays, which is the same. d_lse is split into numbers of d_o's dtype, in a column each: what
    an operand gains of all keys may be small beside what it gains of each. Dropout would drop that part of dP, too, a sink has no dP, and in
    eight bits, times a factor, there may be no 1: by_row_sum, for such calls, makes the sum of the row less by d_lse instead, with columns of
    ones in d_o, -d_lse in o and zeros in v.
    """
    parts = []
    for _ in range(_PARTS):
        part, as_float = rounded(d_lse)
        parts.append(part)
        # Of an infinite one, as a row without a key may have, nothing is left: inf - inf would be a NaN.
        is_finite = numpy.isfinite(as_float)
        d_lse = numpy.where(is_finite, d_lse, 0) - numpy.where(is_finite, as_float, 0)
    parts = numpy.concatenate(parts, axis=-1)
    zeros = numpy.broadcast_to(numpy.zeros_like(parts[..., :1]), (*d_o.shape[:-1], COLUMNS - _PARTS))
    of_v = (numpy.zeros_like if by_row_sum else numpy.ones_like)(v[..., :1])
    of_o, of_d_o = (-parts, numpy.ones_like(parts)) if by_row_sum else (numpy.zeros_like(parts), parts)
    v = numpy.concatenate([v, numpy.broadcast_to(of_v, (*v.shape[:-1], COLUMNS))], axis=-1)
    return v, numpy.concatenate([o, of_o, zeros], axis=-1), numpy.concatenate([d_o, of_d_o, zeros], axis=-1)
