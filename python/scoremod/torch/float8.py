"""FP8 tensors: query, key and value as float8_e4m3fn or float8_e5m2, each with a descale factor: value = stored * descale.

The factors come last among a call's tensors, in the order of scoremod.places.FACTORS. Derivatives take them for constants.
"""

import numbers

import numpy as np
import torch

from scoremod.errors import InvalidArgumentError, UnsupportedError
from scoremod.torch.call import FLOAT8, TENSOR_DTYPES

_OUTPUTS = {dtype: name for dtype, name in TENSOR_DTYPES.items() if dtype.is_floating_point}


def factors_of(query, descales, scale_o, out_dtype, return_amax_o):
    """(factors, the output's dtype) of a call's arguments; ((), None) where query isn't FP8. descales: by name."""
    if query.dtype not in FLOAT8:
        for name, value in {**descales, "scale_o": scale_o, "out_dtype": out_dtype, "return_amax_o": return_amax_o or None}.items():
            if value is not None:
                raise InvalidArgumentError(
                    f"{name}: expected none beside a query of {query.dtype}, found one; it goes with query, key and value of float8_e4m3fn or float8_e5m2"
                )
        return (), None
    out = torch.bfloat16 if out_dtype is None else out_dtype
    if not isinstance(out, torch.dtype) or out not in _OUTPUTS:
        raise InvalidArgumentError(f"out_dtype: expected one of {', '.join(map(str, _OUTPUTS))}, found {out!r:.100}")
    if (out in FLOAT8) != (scale_o is not None):
        found = "none" if scale_o is None else "one"
        raise InvalidArgumentError(f"scale_o: expected one with an FP8 out_dtype and none with another, found {found} with {out}")
    factors = [_factor(name, 1.0 if value is None else value, query.device) for name, value in descales.items()]
    return (*factors, *([] if scale_o is None else [_factor("scale_o", scale_o, query.device)])), out


def _factor(name, value, device):
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        if not 0 < float(value) <= float(np.finfo(np.float32).max):
            raise InvalidArgumentError(f"{name}: expected a positive finite number, found {value!r}")
        return torch.full((), float(value), dtype=torch.float32, device=device)
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.numel() != 1:
        raise InvalidArgumentError(f"{name}: expected a positive number or a float tensor of one element, found {value!r:.100}")
    if value.device != device:
        raise InvalidArgumentError(f"{name}: expected a tensor on {device}, where query is, found one on {value.device}; move it")
    return value.detach().to(torch.float32).reshape(())


def check_without_factors(query, what):
    """Raises UnsupportedError for an FP8 query, for `what`, which has no arguments for its factors."""
    if query.dtype in FLOAT8:
        raise UnsupportedError(f"{what}: expected query, key and value of 16 bits or more, found {query.dtype}; convert them")


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
