"""Arguments that a function doesn't have: those of other attention functions with what takes their place, and slips with the name that is nearest."""

import difflib
import inspect

from scoremod.errors import WrongTypeError

# Other libraries' name of an argument -> the name under which `elsewhere` has its remedy.
_SAME = {
    "is_causal": "causal",
    "attn_mask": "mask",
    "attention_mask": "mask",
    "key_padding_mask": "mask",
    "attn_bias": "bias",
    "q_segment_ids": "segment_ids",
    "kv_segment_ids": "segment_ids",
    "softmax_scale": "scale",
    "sm_scale": "scale",
    "scale_factor": "scale",
    "scaling_factor": "scale",
    "window": "window_size",
    "local_window_size": "window_size",
    "sliding_window": "window_size",
    "dropout_p": "dropout",
    "dropout_rng": "dropout",
    "dropout_seed": "dropout",
    "softcap": "soft_cap",
    "logits_soft_cap": "soft_cap",
    "attn_logits_soft_cap": "soft_cap",
    "block_table": "page_table",
    "block_tables": "page_table",
    "page_indices": "page_table",
    "cu_seqlens_q": "offsets",
    "cu_seqlens_k": "offsets",
    "cu_seqlens": "offsets",
    "kv_seqlens": "lengths",
    "seqlens": "lengths",
    "implementation": "backend",
    "learned_sinks": "sink",
    "s_aux": "sink",
    "sinks": "sink",
}


def arguments_of(function):
    """The names that a function takes by keyword."""
    return [name for name, each in inspect.signature(function).parameters.items() if each.kind != inspect.Parameter.VAR_KEYWORD]


def refuse(function, unknown, known, elsewhere):
    """Raises WrongTypeError for the first of the unknown names. known: the function's own; elsewhere: other functions' argument -> what to write here."""
    name = next(iter(unknown))
    remedy = elsewhere.get(name) or elsewhere.get(_SAME.get(name))
    if remedy is None:
        near = difflib.get_close_matches(name, known, n=1)
        remedy = f"write {near[0]}" if near else f"its arguments are {', '.join(known)}"
    raise WrongTypeError(f"{name}: {function}() expected no such argument, found one; {remedy}")
