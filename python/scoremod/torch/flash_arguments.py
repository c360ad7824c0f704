"""flash_attn's arguments as those of flex_attention. Its tensors are [batch, sequence, heads, dim], or [tokens, heads, dim] of sequences one after the other."""

from typing import Any, NamedTuple

import torch

from scoremod.errors import InvalidArgumentError


class FlexArguments(NamedTuple):
    """Arguments of flex_attention: three tensors, two functions of positions, and where the sequences lie."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    score_mod: Any
    mask_mod: Any
    options: dict[str, Any]


def check_ranks(**tensors):
    """Raises InvalidArgumentError for what is no tensor of 4 dimensions."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor) or tensor.dim() != 4:
            found = f"shape {tuple(tensor.shape)}" if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            raise InvalidArgumentError(f"{name}: expected a tensor of 4 dimensions [batch or pages, sequence, heads, dim], found {found}")


def of_dense(q, k, v, causal, window_size, softcap, alibi_slopes):
    """The FlexArguments of dense tensors."""
    check_ranks(q=q, k=k, v=v)
    functions = _functions(causal, window_size, softcap, alibi_slopes)
    # Positions are indices where there are as many queries as keys, which leaves more plans to choose from than offsets do.
    start = None if functions == (None, None) or q.shape[1] == k.shape[1] else "bottom_right"
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return FlexArguments(q, k, v, *functions, {"q_start": start})


def of_cache(q, k_cache, v_cache, lengths, block_table, causal, window_size, softcap, alibi_slopes):
    """The FlexArguments of queries at the end of what a cache has."""
    functions = _functions(causal, window_size, softcap, alibi_slopes)
    start = None if functions == (None, None) else "bottom_right"
    q, k, v = (x.transpose(1, 2) for x in (q, k_cache, v_cache))
    return FlexArguments(q, k, v, *functions, {"q_start": start, "lengths": lengths, "page_table": block_table})


def of_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, longest, block_table, seqused_k, causal, window_size, softcap, alibi_slopes):
    """The FlexArguments of sequences one after the other. longest: the most queries and keys of one, None where nobody says."""
    functions = _functions(causal, window_size, softcap, alibi_slopes)
    most = tuple(each if each is None else int(each) for each in longest)
    options = {"q_offsets": cu_seqlens_q, "lengths": seqused_k, "max_length": most}
    if block_table is not None:
        check_ranks(k=k, v=v)
        k, v = k.transpose(1, 2), v.transpose(1, 2)
        options["page_table"] = block_table
        if seqused_k is None:
            if cu_seqlens_k is None:
                raise InvalidArgumentError("block_table: expected cu_seqlens_k or seqused_k beside it, which say how many keys there are, found neither")
            options["lengths"] = cu_seqlens_k.diff()
    elif cu_seqlens_k is None:
        raise InvalidArgumentError("cu_seqlens_k: expected where the keys of sequences begin and end, found none")
    else:
        options["kv_offsets"] = cu_seqlens_k
    is_self = block_table is None and seqused_k is None and cu_seqlens_q is cu_seqlens_k
    options["q_start"] = None if functions == (None, None) or is_self else "bottom_right"
    return FlexArguments(q, k, v, *functions, options)


def _functions(causal, window_size, softcap, alibi_slopes):
    """(score_mod, mask_mod) of positions, either of which may be None."""
    return _score_mod(softcap or None, alibi_slopes), _mask_mod(causal, *window_size)


def _score_mod(cap, slopes):
    if cap is None and slopes is None:
        return None

    def score_mod(score, b, h, q_idx, kv_idx):
        if cap is not None:
            score = cap * torch.tanh(score / cap)
        if slopes is not None:
            score = score - (slopes[h] if slopes.dim() == 1 else slopes[b, h]) * (q_idx - kv_idx).abs()
        return score

    return score_mod


def _mask_mod(causal, left, right):
    left, right = (None if bound is None or bound < 0 else bound for bound in (left, right))
    right = 0 if causal else right
    if left is None and right is None:
        return None
    if left is None and right == 0:
        return _causal

    def mask_mod(b, h, q_idx, kv_idx):
        kept = []
        if right is not None:
            kept.append(kv_idx - q_idx <= right)
        if left is not None:
            kept.append(q_idx - kv_idx <= left)
        return kept[0] if len(kept) == 1 else kept[0] & kept[1]

    return mask_mod


def _causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx
