"""FP8 tensors: query, key and value as float8_e4m3fn or float8_e5m2, or key and value alone, each with a descale factor: value = stored * descale.
A descale may have block scales, one for each block of the tensor's elements.

The factors come last among a call's tensors, in the order of scoremod.places.FACTORS. Derivatives take them for constants.
"""

import torch

from scoremod.errors import InvalidArgumentError, UnsupportedError
from scoremod.float8_factors import (
    OF_CACHE,
    are_block_scales,
    cache_gradient,
    check_cache_factor,
    check_factors_fit,
    check_output_factor,
    is_number,
    wrong_factor,
    wrong_output,
)
from scoremod.torch.call import FLOAT8, LAYOUT, TENSOR_DTYPES, check_rank, has_float8_cache

_OUTPUTS = {dtype: name for dtype, name in TENSOR_DTYPES.items() if dtype.is_floating_point}


def factors_of(query, key, value, descales, scale_o, out_dtype, return_amax_o):
    """(factors, the output's dtype) of a call's arguments; without factors where key isn't FP8, and with None where query isn't. descales: by name."""
    if query.dtype not in FLOAT8:
        of_cache = {name: descales[name] for name in OF_CACHE} if has_float8_cache(query, key) else {}
        given = {**descales, "scale_o": scale_o, "out_dtype": out_dtype, "return_amax_o": return_amax_o or None}
        check_factors_fit(query.dtype, given, of_cache)
        check_rank("key", key)
        scaled = zip(of_cache.items(), (key, value))
        return tuple(factor_of_heads(name, factor, query.device, key.shape[1], of) for (name, factor), of in scaled), None
    out = torch.bfloat16 if out_dtype is None else out_dtype
    if not isinstance(out, torch.dtype) or out not in _OUTPUTS:
        raise wrong_output(out)
    check_output_factor(scale_o, out, out in FLOAT8)
    scaled = zip(descales.items(), (query, key, value))
    factors = [_factor(name, 1.0 if factor is None else factor, query.device, of=of) for (name, factor), of in scaled]
    return (*factors, *([] if scale_o is None else [_factor("scale_o", scale_o, query.device)])), out


def factor_of_heads(name, factor, device, heads, of=None):
    """The factor of key or value in a cache: one, or one for each KV head, or block scales of the tensor `of`."""
    check_cache_factor(name, factor)
    is_list = isinstance(factor, torch.Tensor) and factor.numel() != 1
    if not is_list or not factor.is_floating_point() or factor.shape != (heads,):
        return _factor(name, factor, device, heads, of)
    _check_device(name, factor, device)
    return factor.detach().to(torch.float32).contiguous()


def _factor(name, factor, device, heads=None, of=None):
    if is_number(name, factor):
        return torch.full((), float(factor), dtype=torch.float32, device=device)
    blocks = None if of is None else ("THD" if of.dim() == 3 else LAYOUT, of.shape)
    is_floating = isinstance(factor, torch.Tensor) and factor.is_floating_point()
    has_blocks = is_floating and blocks is not None and are_block_scales(factor.shape, *blocks)
    if not is_floating or (factor.numel() != 1 and not has_blocks):
        raise wrong_factor(name, factor, heads, blocks if is_floating else None)
    _check_device(name, factor, device)
    factor = factor.detach().to(torch.float32)
    if not has_blocks:
        return factor.reshape(())
    # The problem has them in the order batch, heads, sequence, dim.
    return factor.movedim(1, 0)[None].contiguous() if factor.dim() == 3 else factor.contiguous()


def _check_device(name, value, device):
    if value.device != device:
        raise InvalidArgumentError(f"{name}: expected a tensor on {device}, where query is, found one on {value.device}; move it")


def check_without_factors(query, key, what):
    """Raises UnsupportedError for an FP8 query or key, for `what`, which has no arguments for their factors."""
    for tensor in (query, key):
        if tensor.dtype in FLOAT8:
            raise UnsupportedError(f"{what}: expected query, key and value of 16 bits or more, found {tensor.dtype}; convert them")


def refuse_cache_gradients(query, key, value):
    """Raises UnsupportedError, where a backward was asked for of a call with an FP8 KV cache."""
    asked = [name for name, tensor in (("query", query), ("key", key), ("value", value)) if tensor.requires_grad] or ["a captured tensor"]
    raise cache_gradient(asked[0], f"Call it within torch.no_grad(), or convert key and value: key.to({query.dtype}), times its factor")


def refuse_gradients(query, key, value, call):
    """Raises UnsupportedError where a backward was asked for what has none."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.requires_grad:
            raise UnsupportedError(
                f"{name}: expected no gradient with respect to an FP8 tensor, found one asked for. Call it with query.detach() and so on where none "
                'is needed; otherwise compute it with scoremod.Attention ("dtype_gradients"), or attend to tensors of 16 bits'
            )
    if call.output_dtype(query) in FLOAT8:
        raise UnsupportedError(
            f"out_dtype: expected 16 bits or more of an output that is differentiated, found {call.output_dtype(query)}; set out_dtype=torch.bfloat16"
        )
