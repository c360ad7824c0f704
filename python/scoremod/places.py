"""What a call binds beside its program's operands, in the order and by the names of docs/reference/problem.md: where sequences lie, lengths, a sink, and
keys of dropout."""

from typing import NamedTuple

from scoremod.sizes import sizes_of


# Of tensors of eight bits, in the order in which calls bind them after everything else.
FACTORS = ("descale_q", "descale_k", "descale_v", "scale_o")


class Ragged(NamedTuple):
    """Sequences one after the other: query [tokens, heads, dim], key and value likewise, offsets_q and offsets_kv int32 [sequences + 1]."""

    sequences: int
    longest_q: int
    longest_kv: int

    bound = ("offsets_q", "offsets_kv")

    def sizes(self, layout, q, k, v):
        one = sizes_of("BSHD", *((1, *x.shape) for x in (q, k, v)))
        return one._replace(batch=self.sequences, seq_q=self.longest_q, seq_kv=self.longest_kv)

    def fields(self, layout, q, k):
        return {"tokens_q": q.shape[0], "tokens_kv": k.shape[0]}


class Paged(NamedTuple):
    """Keys in blocks of a pool: key and value as a layout has them, whose B are the pool's blocks and S the positions in one; page tables
    int32 [batch, blocks_per_sequence]. A call of it has lengths of keys."""

    blocks_per_sequence: int

    bound = ("page_table_k", "page_table_v")

    def sizes(self, layout, q, k, v):
        batch = q.shape[layout.index("B")]
        pool = {letter: k.shape[layout.index(letter)] for letter in "BS"}

        def whole(x):
            return tuple({"B": batch, "S": pool["S"] * self.blocks_per_sequence}.get(letter, size) for letter, size in zip(layout, x.shape))

        return sizes_of(layout, q.shape, whole(k), whole(v))

    def fields(self, layout, q, k):
        return {
            "paged": {
                "block_size": k.shape[layout.index("S")],
                "blocks": k.shape[layout.index("B")],
                "blocks_per_sequence": self.blocks_per_sequence,
            }
        }
