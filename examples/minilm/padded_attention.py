"""The encoder's attention, computed by scoremod."""

import scoremod

# The mask is all that a padded batch needs: a query may look at the keys that are words of its own sentence.
PROGRAM = ["operand lengths: i32 [b]", "value = score", "keep = kv_idx < lengths"]


class PaddedAttention:
    """attention(q, k, v, lengths) for one shape of batch, compiled once and used by every layer. The same as dense.py's."""

    def __init__(self, batch, seq, heads, dim, program=PROGRAM, backend=None):
        problem = {"batch": batch, "heads_q": heads, "seq_q": seq, "dim_qk": dim, "program": program}
        self.compiled = scoremod.Attention(problem, backend=backend)

    def __call__(self, q, k, v, lengths):
        return self.compiled.forward(q, k, v, {"lengths": lengths})
