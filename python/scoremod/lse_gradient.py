"""The gradient of a log-sum-exp, as columns that a backward's tensors get: fused attention takes none beside that of its output."""

# Head dims of fused attention are multiples of 8.
COLUMNS = 8


def with_lse_column(numpy, v, o, d_o, d_lse, *, by_row_sum):
    """(v, o, d_o) whose attention's backward has d loss / d lse in it; the gradient of v has COLUMNS columns more, which mean nothing.

    numpy: jax.numpy or torch, whose arrays these are. d_lse: in d_o's dtype and the order of its dimensions, with one of size 1
    for the head dim.

    The gradient of a modified score is p * (dP - rowsum(d_o * o) + d_lse), where dP = d_o v^T. With a column of ones in v, d_lse in d_o and
    zeros in o, dP grows by d_lse and the sum of the row stays, which is the same. Dropout would drop that part of dP, too, a sink has no dP, and in
    eight bits, times a factor, there may be no 1: by_row_sum, for such calls, makes the sum of the row less by d_lse instead, with a column of
    ones in d_o, -d_lse in o and zeros in v.
    """
    zeros = numpy.broadcast_to(numpy.zeros_like(d_lse), (*d_o.shape[:-1], COLUMNS - 1))
    of_v = (numpy.zeros_like if by_row_sum else numpy.ones_like)(v[..., :1])
    of_o, of_d_o = (-d_lse, numpy.ones_like(d_lse)) if by_row_sum else (numpy.zeros_like(d_lse), d_lse)
    v = numpy.concatenate([v, numpy.broadcast_to(of_v, (*v.shape[:-1], COLUMNS))], axis=-1)
    return v, numpy.concatenate([o, of_o, zeros], axis=-1), numpy.concatenate([d_o, of_d_o, zeros], axis=-1)
