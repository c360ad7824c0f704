"""Packed sequences as one long sequence, whose scores are masked between sequences: what shards of their tokens are parts of."""

import torch

from scoremod.torch.call import RAGGED
from scoremod.torch.sequences import Placed


class PackedTokens:
    """The sequences of all tokens. placed: their Placed; counts: how many query tokens and key tokens there are."""

    def __init__(self, placed: Placed, counts: tuple[int, int]):
        assert placed.place == RAGGED
        self.placed = placed
        # Tokens outside of all sequences have numbers that no token of the other side has.
        (self._of_query, self._first), (self._of_key, self._first_key) = map(_sequences, placed.bound, counts, (-1, -2))

    def functions(self, score_mod, mask_mod):
        """(score_mod, mask_mod) of tokens, of functions of sequences and positions in them, either of which may be None."""
        of_query, first, of_key, first_key = self._of_query, self._first, self._of_key, self._first_key

        def place(h, q_idx, kv_idx):
            # A token outside of all sequences is masked, whatever is read for it.
            return of_query[q_idx].clamp(min=0), h, q_idx - first[q_idx], kv_idx - first_key[kv_idx]

        def of_tokens(score, b, h, q_idx, kv_idx):
            return score_mod(score, *place(h, q_idx, kv_idx))

        def within_sequences(b, h, q_idx, kv_idx):
            same = of_query[q_idx] == of_key[kv_idx]
            return same if mask_mod is None else same & mask_mod(*place(h, q_idx, kv_idx))

        return None if score_mod is None else of_tokens, within_sequences


def _sequences(offsets, tokens, none):
    """(the number of each token's sequence, or `none`, the first token of that sequence), int32."""
    token = torch.arange(tokens, dtype=torch.int32, device=offsets.device)
    sequence = torch.searchsorted(offsets, token, right=True, out_int32=True) - 1
    inside = (token >= offsets[0]) & (token < offsets[-1])
    first = offsets[sequence.clamp(0, offsets.shape[0] - 2).long()]
    return torch.where(inside, sequence, none).to(torch.int32), first
