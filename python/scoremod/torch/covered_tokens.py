"""Tokens that no sequence has, in host memory: there a problem's offsets begin at 0 and end at the tokens, so the call is made of the others alone.

The outputs of such a call are filled beforehand. On a device nobody reads offsets before the call, and kernels themselves fill the rows of tokens outside of sequences.
"""


def leaves_tokens(call, tensor):
    """Whether a call may leave some rows of this output, or of one on its device, as they were."""
    return call.is_ragged and tensor.is_cpu


def covered_tokens(call, q, k, operands):
    """The CoveredTokens of a call on the host whose sequences leave some tokens; None for any other."""
    if not call.is_ragged or not q.is_cpu:
        return None
    at = len(call.program.operands)
    of_tokens = (q,) if call.is_paged else (q, k)
    spans = [(int(offsets[0]), int(offsets[-1])) for offsets in operands[at : at + len(of_tokens)]]
    tokens = [tensor.shape[0] for tensor in of_tokens]
    if all(span == (0, count) for span, count in zip(spans, tokens)) or not all(0 <= first < end <= count for (first, end), count in zip(spans, tokens)):
        return None  # what is wrong is refused where all offsets are looked at
    placed = call.placed(q, k, operands[at:])
    return CoveredTokens(call, (placed.longest_q, None if call.is_paged else placed.longest_kv), spans, operands, at)


class CoveredTokens:
    """The arguments of a call without the tokens outside of sequences.

    operands: with offsets that begin at 0. text: that of a call whose longest sequence doesn't follow from the tokens that are left.
    """

    def __init__(self, call, longest, spans, operands, at):
        self._spans = spans
        shifted = [offsets - first for offsets, (first, _) in zip(operands[at:], spans)]
        self.operands = [*operands[:at], *shifted, *operands[at + len(spans) :]]
        self.text = call._replace(longest=longest).text()

    def queries(self, tensor):
        first, end = self._spans[0]
        return tensor[first:end]

    def keys(self, tensor):
        if len(self._spans) == 1:  # pages have no tokens
            return tensor
        first, end = self._spans[1]
        return tensor[first:end]
