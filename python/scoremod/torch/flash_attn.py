"""flash_attn's functions and arguments over flex_attention, for whoever calls them by these names: tensors are [batch, sequence, heads, dim]."""

import torch

from scoremod.errors import InvalidArgumentError, UnsupportedError
from scoremod.torch.api import flex_attention
from scoremod.torch.flash_arguments import check_ranks, of_cache, of_dense, of_varlen
from scoremod.torch.page_append import append_to_pages

_NO_WINDOW = (-1, -1)


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = _NO_WINDOW,
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    s_aux: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor, None]:
    """Attention of dense tensors. Each last query stands at the last key, for causal masks, windows and ALiBi.

    Parameters
    ----------
    q : Tensor [batch, sequence, heads, dim]
        float32, float16 or bfloat16, on the CPU or CUDA.
    k, v : Tensor [batch, keys, KV heads, dim]
        Of q's dtype. KV heads are a divisor of heads; v may have another dim.
    dropout_p : float
        The part of the weights that is dropped, from 0 to below 1. Which ones follows from PyTorch's CPU generator.
    softmax_scale : float, optional
        The factor of q k^T; 1 / sqrt(dim) without it.
    deterministic : bool
        Whether gradients must be the same bits each time; False leaves it to torch.use_deterministic_algorithms.
    causal : bool
        Whether a query sees no key after it.
    window_size : (int, int)
        How many keys before and after itself a query sees; -1 or None for all.
    softcap : float
        The bound of scores, cap * tanh(score / cap); 0 for none.
    alibi_slopes : float Tensor [heads] or [batch, heads], optional
        The slope of -|distance| that is added to scores, in positions. It has a gradient.
    return_attn_probs : bool
        Also returns the float32 log-sum-exp [batch, heads, sequence], and None in place of probabilities.
    s_aux : float Tensor [heads], optional
        A sink: exp(s_aux) is added to the sum of each softmax. It has a gradient.

    Returns
    -------
    Tensor [batch, sequence, heads, dim of v] of q's dtype, or a tuple of it, the log-sum-exp and None
        A query without any key has output 0, and log-sum-exp -inf without a sink.

    Raises
    ------
    InvalidArgumentError
        For shapes, dtypes and devices that don't fit, as flex_attention.
    UnsupportedError
        For what no backend runs; the message names the reason.
    """
    arguments = of_dense(q, k, v, causal, window_size, softcap, alibi_slopes)
    o, lse = _attend(arguments, softmax_scale, s_aux, dropout_p=dropout_p, deterministic=deterministic or None)
    o = o.transpose(1, 2)
    return (o, lse, None) if return_attn_probs else o


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = _NO_WINDOW,
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: torch.Tensor | None = None,
    *,
    seqused_k: torch.Tensor | None = None,
    s_aux: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    k_descale: float | torch.Tensor | None = None,
    v_descale: float | torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor, None]:
    """Attention of sequences one after the other, whose keys may be in a paged KV cache. Each last query stands at its sequence's last key.

    Parameters
    ----------
    q : Tensor [tokens, heads, dim]
        float32, float16 or bfloat16, on the CPU or CUDA.
    k, v : Tensor [tokens of the keys, KV heads, dim]
        Of q's dtype, or float8_e4m3fn or float8_e5m2 without gradients. With a block_table [pages, page size, KV heads, dim], in any strides.
    cu_seqlens_q, cu_seqlens_k : int32 or int64 Tensor [batch + 1]
        Where sequences begin and end, on q's device. Without cu_seqlens_k, seqused_k says how many keys there are in pages.
    max_seqlen_q, max_seqlen_k : int, optional
        The most queries and keys of a sequence. Work on a GPU is laid out for so many; without them for all tokens.
    dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, s_aux
        flash_attn_func's.
    return_attn_probs : bool
        Also returns the float32 log-sum-exp [heads, tokens], and None in place of probabilities.
    block_table : int32 or int64 Tensor [batch, pages of a sequence], optional
        Position j of sequence b is in page block_table[b, j // page size]. Entries beyond the keys may be anything.
    seqused_k : int32 or int64 Tensor [batch], optional
        How many keys of each sequence take part, from its first on.
    out : Tensor [tokens, heads, dim of v], optional
        Takes the output, and is returned, where gradients are off.

    k_descale, v_descale : float or float Tensor of one element or [KV heads], optional
        Of float8 k and v, which need them: value = stored * descale.

    Returns
    -------
    Tensor [tokens, heads, dim of v] of q's dtype, or a tuple of it, the log-sum-exp and None

    Raises
    ------
    InvalidArgumentError
        For shapes, dtypes and devices that don't fit, as flex_attention.
    UnsupportedError
        For what no backend runs; the message names the reason.
    """
    # The longest of sequences that are all empty has 0 tokens.
    most = tuple(1 if each == 0 else each for each in (max_seqlen_q, max_seqlen_k))
    arguments = of_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, most, block_table, seqused_k, causal, window_size, softcap, alibi_slopes)
    options = {"dropout_p": dropout_p, "deterministic": deterministic or None, "out": out, "descale_k": k_descale, "descale_v": v_descale}
    o, lse = _attend(arguments, softmax_scale, s_aux, **options)
    return (o, lse.T, None) if return_attn_probs else o


def flash_attn_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
    rotary_cos: torch.Tensor | None = None,
    rotary_sin: torch.Tensor | None = None,
    cache_seqlens: int | torch.Tensor | None = None,
    cache_batch_idx: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = _NO_WINDOW,
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
    *,
    s_aux: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention to a KV cache, into which new keys and values may be written before.

    Parameters
    ----------
    q : Tensor [batch, sequence, heads, dim]
        float32, float16 or bfloat16, on the CPU or CUDA. Its last query stands at the cache's last key.
    k_cache, v_cache : Tensor [batch, room, KV heads, dim]
        Of q's dtype. With a block_table [pages, page size, KV heads, dim], in any strides.
    k, v : Tensor [batch, new, KV heads, dim], optional
        Written into the cache from cache_seqlens on, in place and without a gradient.
    rotary_cos, rotary_sin, cache_batch_idx
        Refused: apply rotary embeddings, and index the cache, before the call.
    cache_seqlens : int, or int32 or int64 Tensor [batch], optional
        How many keys the cache has, without k; all it has room for where it is left out.
    block_table : int32 or int64 Tensor [batch, pages of a sequence], optional
        As in flash_attn_varlen_func. No two sequences may write to one place.
    softmax_scale, causal, window_size, softcap, alibi_slopes, s_aux
        flash_attn_func's.
    num_splits : int
        Has no meaning here: the kernels choose.
    return_softmax_lse : bool
        Also returns the float32 log-sum-exp [batch, heads, sequence].

    Returns
    -------
    Tensor [batch, sequence, heads, dim of v] of q's dtype, or a tuple of it and the log-sum-exp

    Raises
    ------
    InvalidArgumentError
        For one of k and v alone, and as flex_attention and append_to_pages.
    UnsupportedError
        For rotary embeddings and cache_batch_idx, and for what no backend runs.
    """
    if rotary_cos is not None or rotary_sin is not None or cache_batch_idx is not None:
        raise UnsupportedError(
            "rotary_cos, rotary_sin, cache_batch_idx: expected none, found one; apply rotary embeddings, or index the cache, before the call"
        )
    if (k is None) != (v is None):
        raise InvalidArgumentError("k, v: expected both or neither, found one")
    check_ranks(q=q, k_cache=k_cache, v_cache=v_cache, **({} if k is None else {"k": k, "v": v}))
    batch, room = q.shape[0], k_cache.shape[1] * (1 if block_table is None else block_table.shape[1])
    if cache_seqlens is None:
        cache_seqlens = room - (0 if k is None else k.shape[1])
    if not isinstance(cache_seqlens, torch.Tensor):
        cache_seqlens = torch.full((batch,), cache_seqlens, dtype=torch.int32, device=q.device)
    lengths = cache_seqlens if k is None else cache_seqlens + k.shape[1]
    if k is not None and v is not None:
        # A row of a dense cache is a page that has room for all its keys.
        table = torch.arange(batch, dtype=torch.int32, device=q.device)[:, None] if block_table is None else block_table
        k_pages, v_pages, key, value = (x.transpose(1, 2) for x in (k_cache, v_cache, k, v))
        append_to_pages(k_pages, v_pages, key, value, table, lengths)
    o, lse = _attend(of_cache(q, k_cache, v_cache, lengths, block_table, causal, window_size, softcap, alibi_slopes), softmax_scale, s_aux)
    o = o.transpose(1, 2)
    return (o, lse) if return_softmax_lse else o


def _attend(arguments, scale, sink, **options):
    q, k, v, score_mod, mask_mod, places = arguments
    return flex_attention(q, k, v, score_mod, scale=scale, mask_mod=mask_mod, enable_gqa=True, return_lse=True, sink=sink, **places, **options)
