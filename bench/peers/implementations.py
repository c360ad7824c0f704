"""How each implementation is asked for a case: a function of q, k, v [batch, heads, sequence, dim], or what says why there is none."""

import functools

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask
from torch.nn.attention.flex_attention import flex_attention as torch_flex_attention
from torch.nn.functional import scaled_dot_product_attention

from scoremod.torch import explain, flex_attention

OURS = {"scoremod": None, "scoremod_cudnn": ["cudnn"], "scoremod_kernels": ["kernels"]}
SDPA = {"torch_sdpa_cudnn": SDPBackend.CUDNN_ATTENTION, "torch_sdpa": SDPBackend.FLASH_ATTENTION}
FLEX = {"flex_triton": None, "flex_flash": {"BACKEND": "FLASH"}}
# Added to a name: the block mask is made in each call, as where documents differ from step to step. Without it it is made before the timing.
IN_CALL = "_mask_in_call"
WITH_MASKS = (*FLEX, "fa4")
NAMES = (*OURS, *FLEX, "fa4", *SDPA, *(name + IN_CALL for name in WITH_MASKS))


class Refused(Exception):
    """An implementation has no way to say the case."""


def build(name, case, q, k):
    """Raises Refused, or what the implementation raises, where it can't."""
    if name in OURS:
        backends = OURS[name] if q.device.type == "cuda" else None
        return functools.partial(_ours, words=_our_words(case, q, k), lengths=case.lengths, backends=backends)
    if name in SDPA:
        return _sdpa(case, SDPA[name], q)
    name, in_call = name.removesuffix(IN_CALL), name.endswith(IN_CALL)
    if in_call and case.mask_of_all() is None:
        raise Refused("has no mask")
    if name == "fa4":
        import fa4

        return fa4.build(case, q, k, in_call)
    return _flex(case, q, k, FLEX[name], in_call)


def ends_of(case, device):
    """int32 [sequences + 1], where each sequence of a varlen case begins, and their longest."""
    ends = torch.tensor([0, *case.lengths]).cumsum(0).to(torch.int32).to(device)
    return ends, max(case.lengths)


def tokens(x):
    """[1, heads, tokens, dim] as [tokens, heads, dim], and back."""
    # A view whose gradient is one, too: x[0]'s copies.
    return x.squeeze(0).transpose(0, 1)


def rows(o):
    return o.transpose(0, 1)[None]


def _our_words(case, q, k):
    words = {"score_mod": case.score_mod, "mask_mod": case.mask_mod, "enable_gqa": q.shape[1] != k.shape[1]}
    if case.lengths is not None:
        words["q_offsets"], words["max_length"] = ends_of(case, q.device)
    return words


def _ours(q, k, v, words, lengths, backends):
    if lengths is None:
        return flex_attention(q, k, v, **words, backends=backends)
    return rows(flex_attention(tokens(q), tokens(k), tokens(v), **words, backends=backends))


def explained(case, q, k, v):
    """scoremod's Explanation of the case."""
    words = _our_words(case, q, k)
    return explain(q, k, v, **words) if case.lengths is None else explain(tokens(q), tokens(k), tokens(v), **words)


def _sdpa(case, backend, q):
    if case.plain is None or case.plain["window"] is not None:
        raise Refused("scaled_dot_product_attention has no words for it but a dense mask")
    is_causal = case.plain["causal"]
    if case.lengths is not None:
        return _torch_varlen(case, is_causal, q)

    def attention(q, k, v):
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=q.shape[1] != k.shape[1])

    return attention


def _torch_varlen(case, is_causal, q):
    from torch.nn.attention.varlen import varlen_attn

    ends, longest = ends_of(case, q.device)
    window = (-1, 0) if is_causal else (-1, -1)
    return lambda q, k, v: rows(varlen_attn(tokens(q), tokens(k), tokens(v), ends, ends, longest, longest, window_size=window))


@functools.cache
def _compiled():
    import torch._dynamo
    import torch._functorch.config

    torch._dynamo.config.recompile_limit = 256
    # A backward runs many times on what one forward has left.
    torch._functorch.config.donated_buffer = False
    return torch.compile(torch_flex_attention, dynamic=False)


@functools.cache
def _compiled_block_mask():
    return torch.compile(create_block_mask, dynamic=False)


def forget():
    """Lets go of what PyTorch compiled for a case: a call of the next one would look through all of it on the host."""
    torch._dynamo.reset()
    _compiled.cache_clear()
    _compiled_block_mask.cache_clear()


def block_mask(case, q, k, make=create_block_mask):
    batch, heads = (size if varies else None for size, varies in zip(q.shape[:2], case.mask_varies))
    return make(case.mask_of_all(), batch, heads, q.shape[2], k.shape[2], device=q.device, BLOCK_SIZE=128)


def block_mask_in_call(case):
    """(q, k) -> the block mask, made by compiled code."""
    make = _compiled_block_mask()
    return lambda q, k: block_mask(case, q, k, make)


def _flex(case, q, k, kernel_options, in_call):
    compiled, grouped = _compiled(), q.shape[1] != k.shape[1]
    if in_call:
        mask_of = block_mask_in_call(case)
    else:
        made = None if case.mask_of_all() is None else block_mask(case, q, k)

        def mask_of(q, k):
            return made

    return lambda q, k, v: compiled(q, k, v, case.score_mod, mask_of(q, k), enable_gqa=grouped, kernel_options=kernel_options)
