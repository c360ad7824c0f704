"""A mixed batch of a server as the attention calls that run it best: decode steps apart from prompts and chunks of them.

In one call each decode step would get a whole tile of queries, of which few rows are used. Alone they run split-KV kernels.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch


class Sequences(NamedTuple):
    """Successive sequences of a batch, which one call attends to.

    Attributes
    ----------
    numbers : slice
        Theirs in the batch.
    tokens : slice
        Their queries among the batch's.
    offsets : int32 Tensor [sequences + 1]
        Where their queries begin and end among these, from 0 on.
    lengths, page_table : int32 Tensor [sequences], [sequences, pages]
        How many keys each has, and in which pages.
    most : int
        The most queries of a sequence, rounded up to a power of two, since a call is compiled for it.
    count : int or None
        The queries of each sequence, where all have as many and no token is left over.
    """

    numbers: slice
    tokens: slice
    offsets: torch.Tensor
    lengths: torch.Tensor
    page_table: torch.Tensor
    most: int
    count: int | None


def one_call(tokens: int, offsets: torch.Tensor, lengths: torch.Tensor, page_table: torch.Tensor, most: int, count: int | None = None) -> Sequences:
    """All sequences of a batch in one call, as where nothing of the batch is known on the host. The arguments are those of split_calls."""
    return Sequences(slice(None), slice(0, tokens), offsets, lengths, page_table, _rounded(most), count)


def split_calls(
    counts: Sequence[int], tokens: int, offsets: torch.Tensor, lengths: torch.Tensor, page_table: torch.Tensor, threshold: int = 1
) -> list[Sequences]:
    """The calls of a batch: of decode steps at its front, of what lies between, and of decode steps at its end, as far as there are any.

    Nothing waits for a device.

    Parameters
    ----------
    counts : sequence of int
        How many queries each sequence has, on the host.
    tokens : int
        The batch's queries, and padding behind them.
    offsets : int32 Tensor [sequences + 1]
        Where sequences begin and end among the queries; flex_attention's q_offsets.
    lengths : int32 Tensor [sequences]
        How many keys each sequence has.
    page_table : int32 Tensor [sequences, pages of a sequence]
        flex_attention's.
    threshold : int
        The most queries of a decode step, speculative ones included.

    Returns
    -------
    list of Sequences
        In the batch's order; none where no sequence has a query. Padding is in the last. Decode steps amid prompts are in the prompts' call.
    """
    if not any(counts):
        return []
    is_step = [count <= threshold for count in counts]
    first = is_step.index(False) if False in is_step else len(counts)
    last = len(counts) - is_step[::-1].index(False) if first < len(counts) else len(counts)
    # Sequences without queries make no call of their own.
    first, last = first if any(counts[:first]) else 0, last if any(counts[last:]) else len(counts)
    if first in (0, len(counts)) and last == len(counts):
        return [one_call(tokens, offsets, lengths, page_table, max(counts), _count(counts, tokens) if first else None)]
    ends = [0, sum(counts[:first]), sum(counts[:last]) if last < len(counts) else tokens, tokens]
    calls, numbers = [], [0, first, last, len(counts)]
    for begin, end, token, behind in zip(numbers, numbers[1:], ends, ends[1:]):
        if begin < end:
            own = offsets[begin : end + 1]
            count = None if (begin, end) == (first, last) else _count(counts[begin:end], behind - token)
            most = _rounded(max(counts[begin:end]))
            calls.append(
                Sequences(slice(begin, end), slice(token, behind), own - token if token else own, lengths[begin:end], page_table[begin:end], most, count)
            )
    return calls


def _count(counts, tokens):
    """The queries of each sequence, where all have as many and no token is left."""
    return counts[0] if counts[0] * len(counts) == tokens and min(counts) == max(counts) else None


def _rounded(most):
    """The next power of two."""
    return 1 << max(most - 1, 0).bit_length()
