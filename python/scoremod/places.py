"""The runtime arguments that a call has beside its program's operands: offsets of sequences, page tables, lengths, a sink, dropout keys.

Their names and order are docs/reference/problem.md's."""

from typing import NamedTuple

from scoremod.sizes import sizes_of


# The scale factors of FP8 tensors. They come last among the arguments, in this order.
FACTORS = ("descale_q", "descale_k", "descale_v", "scale_o")


class Ragged(NamedTuple):
    """Sequences one after the other: query [tokens, heads, dim], key and value likewise, offsets_q and offsets_kv int32 [sequences + 1]."""

    sequences: int
    longest_q: int
    longest_kv: int

    bound = ("offsets_q", "offsets_kv")

    def sizes(self, layout, q, k, v, *, may_be_empty=False):
        one = sizes_of("BSHD", *((1, *x.shape) for x in (q, k, v)), may_be_empty=may_be_empty)
        return one._replace(batch=self.sequences, seq_q=self.longest_q, seq_kv=self.longest_kv)

    def fields(self, layout, q, k):
        return {"tokens_q": q.shape[0], "tokens_kv": k.shape[0]}


class Paged(NamedTuple):
    """A paged KV cache: key and value hold pages in place of batches, so that a layout's B is their number and S the positions in one. Page
    tables are int32 [batch, blocks_per_sequence]. A call needs lengths of keys."""

    blocks_per_sequence: int

    bound = ("page_table_k", "page_table_v")

    def sizes(self, layout, q, k, v, *, may_be_empty=False):
        batch = q.shape[layout.index("B")]
        pool = {letter: k.shape[layout.index(letter)] for letter in "BS"}

        def whole(x):
            return tuple({"B": batch, "S": pool["S"] * self.blocks_per_sequence}.get(letter, size) for letter, size in zip(layout, x.shape))

        return sizes_of(layout, q.shape, whole(k), whole(v), may_be_empty=may_be_empty)

    def fields(self, layout, q, k):
        return {
            "paged": {
                "block_size": k.shape[layout.index("S")],
                "blocks": k.shape[layout.index("B")],
                "blocks_per_sequence": self.blocks_per_sequence,
            }
        }


class RaggedPaged(NamedTuple):
    """A mixed batch: queries as Ragged has them, and a paged KV cache as Paged has it."""

    sequences: int
    longest_q: int
    blocks_per_sequence: int

    bound = ("offsets_q", *Paged.bound)

    def sizes(self, layout, q, k, v, *, may_be_empty=False):
        pages = pages_layout(layout)
        size = {"B": self.sequences, "S": self.longest_q, "H": q.shape[1], "D": q.shape[2]}
        padded = Shape(tuple(size[letter] for letter in pages))
        return Paged(self.blocks_per_sequence).sizes(pages, padded, k, v, may_be_empty=may_be_empty)

    def fields(self, layout, q, k):
        return {"tokens_q": q.shape[0], **Paged(self.blocks_per_sequence).fields(pages_layout(layout), q, k)}


class Shape(NamedTuple):
    """The shape of a tensor that there isn't."""

    shape: tuple


def pages_layout(layout):
    """The layout of the pages of a mixed batch whose queries have this one."""
    return "BSHD" if layout == "THD" else layout
