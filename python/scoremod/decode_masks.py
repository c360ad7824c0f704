"""Causal masks of one query whose position nothing tells: a warning, for such a query sees the first key alone."""

import warnings

_CAUSAL = {"ge": ("q_idx", "kv_idx"), "le": ("kv_idx", "q_idx")}


def warn_of_decode_masks(program, seq_q, seq_kv, stacklevel):
    """Warns where the only query sees key 0 alone of several by q_idx >= kv_idx. To be called where no position is given."""
    if seq_q == 1 and seq_kv > 1 and keeps_keys_up_to_the_query(program):
        warnings.warn(
            f"mask_mod keeps key 0 alone of {seq_kv}: it has q_idx >= kv_idx, and the only query's index is 0. Where that query stands at the last key, as in a "
            f"step of decoding, say so by q_start={seq_kv - 1}, or by a tensor of each batch's, q_start=positions",
            stacklevel=stacklevel + 1,
        )


def keeps_keys_up_to_the_query(program):
    """Whether a term of its mask is q_idx >= kv_idx of the indices themselves."""
    return program.keep is not None and _is_causal(program, program.keep)


def _is_causal(program, number):
    """Whether a condition, or a term of a conjunction, is the comparison of the indices themselves."""
    node = program.nodes[number]
    if node.op == "and":
        return any(_is_causal(program, argument) for argument in node.args)
    return tuple(program.nodes[argument].op for argument in node.args) == _CAUSAL.get(node.op)
