"""How each implementation is asked for a case: a function of q, k, v [batch, heads, sequence, dim], or what says why there is none."""

import functools

from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask
from torch.nn.attention.flex_attention import flex_attention as torch_flex_attention
from torch.nn.functional import scaled_dot_product_attention

from scoremod.torch import flex_attention

OURS = {"scoremod": None, "scoremod_cudnn": ["cudnn"], "scoremod_kernels": ["kernels"]}
SDPA = {"torch_sdpa_cudnn": SDPBackend.CUDNN_ATTENTION, "torch_sdpa": SDPBackend.FLASH_ATTENTION}
NAMES = (*OURS, "flex_triton", "flex_flash", "fa4", *SDPA)


class Refused(Exception):
    """An implementation has no way to say the case."""


def build(name, case, q, k):
    """Raises Refused, or what the implementation raises, where it can't. Block masks are made here, before anything is timed."""
    grouped = q.shape[1] != k.shape[1]
    if name in OURS:
        backends = OURS[name] if q.device.type == "cuda" else None
        return functools.partial(_ours, case=case, grouped=grouped, backends=backends)
    if name in SDPA:
        if case.sdpa is None:
            raise Refused("scaled_dot_product_attention has no words for it but a dense mask")
        return functools.partial(_sdpa, backend=SDPA[name], options=case.sdpa)
    if name == "fa4":
        import fa4

        return fa4.build(case, q, k)
    return _flex(case, q, k, grouped, {"BACKEND": "FLASH"} if name == "flex_flash" else None)


def _ours(q, k, v, case, grouped, backends):
    return flex_attention(q, k, v, case.score_mod, mask_mod=case.mask_mod, enable_gqa=grouped, backends=backends)


def _sdpa(q, k, v, backend, options):
    with sdpa_kernel(backend):
        return scaled_dot_product_attention(q, k, v, **options)


@functools.cache
def _compiled():
    import torch._dynamo
    import torch._functorch.config

    torch._dynamo.config.recompile_limit = 256
    # A backward runs many times on what one forward has left.
    torch._functorch.config.donated_buffer = False
    return torch.compile(torch_flex_attention, dynamic=False)


def block_mask(case, q, k):
    batch, heads = (size if varies else None for size, varies in zip(q.shape[:2], case.mask_varies))
    return create_block_mask(case.mask_mod, batch, heads, q.shape[2], k.shape[2], device=q.device, BLOCK_SIZE=128)


def _flex(case, q, k, grouped, kernel_options):
    mask = None if case.mask_mod is None else block_mask(case, q, k)
    compiled = _compiled()
    return lambda q, k, v: compiled(q, k, v, case.score_mod, mask, enable_gqa=grouped, kernel_options=kernel_options)
