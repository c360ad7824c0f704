"""FlashAttention-4's CuTe path: score and mask functions in its own language, with block masks made beforehand."""

import cutlass
import cutlass.cute as cute
from flash_attn.cute import utils
from flash_attn.cute.block_sparsity import BlockSparseTensorsTorch
from flash_attn.cute.interface import flash_attn_func
from implementations import Refused, block_mask


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


def _tiles(case, q, k):
    made = block_mask(case, q, k)
    forward = BlockSparseTensorsTorch(made.kv_num_blocks, made.kv_indices, made.full_kv_num_blocks, made.full_kv_indices, block_size=(128, 128))
    backward = BlockSparseTensorsTorch(made.q_num_blocks, made.q_indices, made.full_q_num_blocks, made.full_q_indices, block_size=(128, 128))
    return {"block_sparse_tensors": forward, "block_sparse_tensors_bwd": backward}


def build(case, q, k):
    seq = q.shape[2]
    options = {
        "full": {},
        "causal": {"causal": True},
        "window_512": {"causal": True, "window_size": (seq // 8 - 1, 0)},
        "soft_cap": {"softcap": 50.0},
        "soft_cap_causal": {"softcap": 50.0, "causal": True},
        **score_functions(q.shape[1]),
    }
    if case.name.startswith("decode"):
        options[case.name] = {}
    for name, mask in mask_functions(seq).items():
        if name == case.name:
            options[name] = {"mask_mod": mask, **_tiles(case, q, k)}
    if case.name not in options:
        raise Refused("captured tensors have no gradient there" if case.learned else "not written for it")
    words = options[case.name]

    def attention(q, k, v):
        out = flash_attn_func(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), **words)
        return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

    return attention
