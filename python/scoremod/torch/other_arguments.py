"""Arguments that other attention functions have, and what takes their place in flex_attention."""

import torch

from scoremod.errors import InvalidArgumentError

# Substitutes for arguments that scaled_dot_product_attention and other attention functions have.
_INSTEAD = {
    "is_causal": "give mask_mod=lambda b, h, q_idx, kv_idx: q_idx >= kv_idx",
    "causal": "give mask_mod=lambda b, h, q_idx, kv_idx: q_idx >= kv_idx",
    "attn_mask": "read it in a function: mask_mod=lambda b, h, q_idx, kv_idx: mask[q_idx, kv_idx], or added to the score in score_mod",
    "attn_bias": "add it in score_mod: lambda score, b, h, q_idx, kv_idx: score + bias[h, q_idx, kv_idx]",
    "alibi_slopes": "add them in score_mod: lambda score, b, h, q_idx, kv_idx: score + slopes[h] * (kv_idx - q_idx)",
    "window_size": "give mask_mod=lambda b, h, q_idx, kv_idx: (q_idx - kv_idx).abs() <= window",
    "softcap": "give score_mod=lambda score, b, h, q_idx, kv_idx: cap * torch.tanh(score / cap)",
    "softmax_scale": "give scale=",
    "sm_scale": "give scale=",
    "dropout": "give dropout_p=",
    **dict.fromkeys(("cu_seqlens_q", "cu_seq_q", "cu_seqlens"), "give q_offsets="),
    **dict.fromkeys(("cu_seqlens_k", "cu_seq_k"), "give kv_offsets="),
    **dict.fromkeys(("max_seqlen_q", "max_seqlen_k", "max_q", "max_k"), "give max_length=, a number or a pair"),
    **dict.fromkeys(("block_table", "block_tables"), "give page_table=, and lengths= of the keys"),
    **dict.fromkeys(("cache_seqlens", "seqused_k"), "give lengths="),
}


def refuse_others(others, mask_mod):
    """Raises InvalidArgumentError for arguments that flex_attention doesn't have, with what to write instead, and TypeError for those that nobody has."""
    for name in others:
        if name in _INSTEAD:
            raise InvalidArgumentError(f"{name}: expected no such argument, found one; {_INSTEAD[name]}")
        raise TypeError(f"flex_attention() got an unexpected keyword argument {name!r}")
    if isinstance(mask_mod, torch.Tensor):
        raise InvalidArgumentError(
            f"mask_mod: expected a function, found a tensor of shape {tuple(mask_mod.shape)}; read it in one: lambda b, h, q_idx, kv_idx: mask[q_idx, kv_idx]"
        )
