"""FlashAttention-4's CuTe path: score and mask functions in its own language, with block masks."""

import cutlass
import cutlass.cute as cute
from flash_attn.cute import utils
from flash_attn.cute.block_sparsity import BlockSparseTensorsTorch
from flash_attn.cute.interface import flash_attn_func, flash_attn_varlen_func
from implementations import Refused, block_mask, block_mask_in_call, ends_of, rows, tokens


def mask_functions(seq):
    eighth, quarter, globals_, width = seq // 8, seq // 4, seq // 64, int(seq**0.5)

    @cute.jit
    def documents(b, h, q_idx, kv_idx, info, aux):
        return (q_idx // eighth) == (kv_idx // eighth)

    @cute.jit
    def documents_causal(b, h, q_idx, kv_idx, info, aux):
        return ((q_idx // eighth) == (kv_idx // eighth)) & (q_idx >= kv_idx)

    @cute.jit
    def prefix(b, h, q_idx, kv_idx, info, aux):
        return (q_idx >= kv_idx) | (kv_idx < quarter)

    @cute.jit
    def padding(b, h, q_idx, kv_idx, info, aux):
        return kv_idx < 3 * quarter

    @cute.jit
    def neighbourhood(b, h, q_idx, kv_idx, info, aux):
        reach = utils.scalar_to_ssa(4, cutlass.Int32)
        rows = (q_idx // width) - (kv_idx // width)
        columns = (q_idx % width) - (kv_idx % width)
        return (rows <= reach) & (rows >= -reach) & (columns <= reach) & (columns >= -reach)

    @cute.jit
    def dilated(b, h, q_idx, kv_idx, info, aux):
        return ((q_idx - kv_idx) % 2) == 0

    @cute.jit
    def global_window(b, h, q_idx, kv_idx, info, aux):
        distance = q_idx - kv_idx
        return (q_idx < globals_) | (kv_idx < globals_) | ((distance <= eighth) & (distance >= -eighth))

    return {
        "documents": documents,
        "documents_causal": documents_causal,
        "prefix_1024": prefix,
        "padding_75": padding,
        "neighbourhood_2d": neighbourhood,
        "dilated_2": dilated,
        "global_64_window_512": global_window,
    }


def score_functions(heads):
    @cute.jit
    def alibi(score, b, h, q_idx, kv_idx, info, aux):
        return score + cute.math.exp2((h + 1).to(cutlass.Float32) * (-8.0 / heads)) * (kv_idx - q_idx).to(cutlass.Float32)

    @cute.jit
    def relative(score, b, h, q_idx, kv_idx, info, aux):
        return score + (kv_idx - q_idx).to(cutlass.Float32) * 0.01

    @cute.jit
    def unchanged(gradient, score, b, h, q_idx, kv_idx, info, aux):
        return gradient

    return {
        "alibi": {"score_mod": alibi, "score_mod_bwd": unchanged},
        "alibi_causal": {"score_mod": alibi, "score_mod_bwd": unchanged, "causal": True},
        "relative_bias": {"score_mod": relative, "score_mod_bwd": unchanged},
    }


def _tiles(made):
    """FlashAttention-4's block lists of a block mask: of keys for the forward, of queries for the backward."""
    forward = BlockSparseTensorsTorch(made.kv_num_blocks, made.kv_indices, made.full_kv_num_blocks, made.full_kv_indices, block_size=(128, 128))
    backward = BlockSparseTensorsTorch(made.q_num_blocks, made.q_indices, made.full_q_num_blocks, made.full_q_indices, block_size=(128, 128))
    return {"block_sparse_tensors": forward, "block_sparse_tensors_bwd": backward}


def _words(case, q):
    """flash_attn_func's words for the case, and whether it needs block lists."""
    if case.plain is not None:
        window = case.plain["window"]
        return {"causal": case.plain["causal"], **({} if window is None else {"window_size": (window - 1, 0)})}, False
    name = case.modifier.removesuffix("_deterministic")
    found = {"soft_cap": {"softcap": 50.0}, "soft_cap_causal": {"softcap": 50.0, "causal": True}, **score_functions(q.shape[1])}.get(name)
    if found is not None:
        return found, False
    masks = mask_functions(q.shape[2])
    if name not in masks:
        raise Refused("captured tensors have no gradient there" if case.learned else "not written for it")
    return {"mask_mod": masks[name]}, True


def build(case, q, k, in_call):
    words, sparse = _words(case, q)
    words = {**words, "deterministic": case.deterministic}
    if in_call and not sparse:
        raise Refused("needs no block mask for it")
    if case.lengths is not None:
        ends, longest = ends_of(case, q.device)
        words |= {"cu_seqlens_q": ends, "cu_seqlens_k": ends, "max_seqlen_q": longest, "max_seqlen_k": longest}
        return lambda q, k, v: rows(_output(flash_attn_varlen_func(tokens(q), tokens(k), tokens(v), **words)))
    made = _tiles(block_mask(case, q, k)) if sparse and not in_call else {}
    mask_of = block_mask_in_call(case) if in_call else None

    def attention(q, k, v):
        tiles = made if mask_of is None else _tiles(mask_of(q, k))
        return _output(flash_attn_func(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), **words, **tiles)).transpose(1, 2)

    return attention


def _output(out):
    return out[0] if isinstance(out, tuple) else out
