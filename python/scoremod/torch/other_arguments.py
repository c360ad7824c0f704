"""Arguments that other attention functions have, and what takes their place in flex_attention (unknown_arguments)."""

import torch

from scoremod.errors import InvalidArgumentError

# Arguments of other attention functions -> what takes their place here.
ELSEWHERE = {
    "causal": "give mask_mod=lambda b, h, q_idx, kv_idx: q_idx >= kv_idx",
    "mask": "read it in a function: mask_mod=lambda b, h, q_idx, kv_idx: mask[q_idx, kv_idx], or added to the score in score_mod",
    "bias": "add it in score_mod: lambda score, b, h, q_idx, kv_idx: score + bias[h, q_idx, kv_idx]",
    "segment_ids": "give mask_mod=lambda b, h, q_idx, kv_idx: ids[b, q_idx] == ids[b, kv_idx]",
    "alibi_slopes": "add them in score_mod: lambda score, b, h, q_idx, kv_idx: score + slopes[h] * (kv_idx - q_idx)",
    "window_size": "give mask_mod=lambda b, h, q_idx, kv_idx: (q_idx - kv_idx).abs() <= window",
    "soft_cap": "give score_mod=lambda score, b, h, q_idx, kv_idx: cap * torch.tanh(score / cap)",
    "scale": "give scale=",
    "dropout": "give dropout_p=",
    "offsets": "give q_offsets=, and kv_offsets= where keys have others",
    **dict.fromkeys(("cu_seqlens_q", "cu_seq_q", "cu_seqlens"), "give q_offsets="),
    **dict.fromkeys(("cu_seqlens_k", "cu_seq_k"), "give kv_offsets="),
    **dict.fromkeys(("max_seqlen_q", "max_seqlen_k", "max_q", "max_k"), "give max_length=, a number or a pair"),
    "page_table": "give page_table=, and lengths= of the keys",
    **dict.fromkeys(("indices", "topk_indices"), "give token_list=, integers [batch, queries, entries]"),
    **dict.fromkeys(("lengths", "cache_seqlens", "seqused_k"), "give lengths="),
    "backend": "give backends=",
    "sink": "give sink=",
}


def refuse_tensor(mask_mod):
    """Raises InvalidArgumentError for a tensor in a function's place."""
    if isinstance(mask_mod, torch.Tensor):
        raise InvalidArgumentError(
            f"mask_mod: expected a function, found a tensor of shape {tuple(mask_mod.shape)}; read it in one: lambda b, h, q_idx, kv_idx: mask[q_idx, kv_idx]"
        )
