"""The gradient of a log-sum-exp, as extra columns of a backward's tensors: fused attention takes only the output's gradient."""

from scoremod.float8_factors import SCALE_BLOCK

# Head dims of fused attention are multiples of 8.
COLUMNS = 8
# So many numbers of 8 digits, as bfloat16 has them, add up to a float32.
_PARTS = 3


def with_lse_columns(numpy, v, o, d_o, d_lse, rounded, *, by_row_sum):
    """(v, o, d_o) whose backward includes d loss / d lse. The gradient of v has COLUMNS more columns, to be discarded.

    numpy: jax.numpy or torch, whose arrays these are. d_lse: float32, in the order of d_o's dimensions, with one of size 1 for the head dim.
    rounded: the numbers of d_o's dtype that are nearest to some, and the same in float32.

    The gradient of a modified score is p * (dP - delta + d_lse), with dP = d_o v^T and delta = rowsum(d_o * o). Columns of ones in v, d_lse in
    d_o and zeros in o add d_lse to dP and leave delta as it is. d_lse is split over several columns of d_o's dtype, for its rounding error
    would dominate small operand gradients that sum over all keys.

    by_row_sum: subtract d_lse from delta instead, with columns of ones in d_o, -d_lse in o and zeros in v. Dropout, sinks and FP8 need it:
        dropout would drop that part of dP, a sink has no dP, and a scaled FP8 tensor may be unable to hold a 1.
    """
    parts = []
    for _ in range(_PARTS):
        part, as_float = rounded(d_lse)
        parts.append(part)
        # A row without keys may have an infinite d_lse: its remainder is 0, for inf - inf would be a NaN.
        is_finite = numpy.isfinite(as_float)
        d_lse = numpy.where(is_finite, d_lse, 0) - numpy.where(is_finite, as_float, 0)
    parts = numpy.concatenate(parts, axis=-1)
    zeros = numpy.broadcast_to(numpy.zeros_like(parts[..., :1]), (*d_o.shape[:-1], COLUMNS - _PARTS))
    of_v = (numpy.zeros_like if by_row_sum else numpy.ones_like)(v[..., :1])
    of_o, of_d_o = (-parts, numpy.ones_like(parts)) if by_row_sum else (numpy.zeros_like(parts), parts)
    v = numpy.concatenate([v, numpy.broadcast_to(of_v, (*v.shape[:-1], COLUMNS))], axis=-1)
    return v, numpy.concatenate([o, of_o, zeros], axis=-1), numpy.concatenate([d_o, of_d_o, zeros], axis=-1)


def with_scale_columns(numpy, scales, dim):
    """Block scales [batch, heads, sequence, dim] of a v of this head dim, for the v of with_lse_columns: its columns of zeros have ones."""
    extent, whole = scales.shape[-1], dim + COLUMNS
    if extent == 1:
        return scales
    more = COLUMNS if extent == dim else -(-whole // SCALE_BLOCK) - extent
    return numpy.concatenate([scales, numpy.broadcast_to(numpy.ones_like(scales[..., :1]), (*scales.shape[:-1], more))], axis=-1)
