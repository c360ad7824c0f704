"""Attention over sets of keys that were attended to apart, such as a prefix that many sequences share."""

import torch

from scoremod.errors import InvalidArgumentError


def merge(output: torch.Tensor, lse: torch.Tensor, other_output: torch.Tensor, other_lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The attention over both sets of keys, from that over each of them with the same queries.

    Parameters
    ----------
    output, other_output : Tensor [..., dim]
        Outputs of the same queries.
    lse, other_lse : Tensor [...]
        The natural log of each row's sum of exp of scores, as flex_attention(return_lse=True) gives it. A row without a key in one set has -inf there,
        and a sink belongs to one of the calls alone.

    Returns
    -------
    (Tensor, Tensor)
        Output and LSE, of the first output's and LSE's dtypes. Both have gradients. Sets may be merged in any order, and the result with more. The
        weights are those of FlashAttention's blocks of keys (Dao et al. 2022, section 3.1).

    Raises
    ------
    InvalidArgumentError
        For shapes that don't fit, and an LSE of integers.
    """
    _check(output, lse, other_output, other_lse)
    dtype = torch.promote_types(lse.dtype, torch.float32)
    first, second = lse.to(dtype), other_lse.to(dtype)
    largest = torch.maximum(first, second).detach()
    shift = torch.where(torch.isneginf(largest), 0, largest)  # no key in either
    weight, other_weight = torch.exp(first - shift), torch.exp(second - shift)
    total = weight + other_weight
    is_empty = total == 0
    divisor = torch.where(is_empty, 1, total)
    merged = (output.to(dtype) * (weight / divisor)[..., None] + other_output.to(dtype) * (other_weight / divisor)[..., None]).to(output.dtype)
    return merged, torch.where(is_empty, float("-inf"), shift + torch.log(divisor)).to(lse.dtype)


def _check(output, lse, other_output, other_lse):
    shape = tuple(output.shape)
    for name, tensor, expected in (("lse", lse, shape[:-1]), ("other_output", other_output, shape), ("other_lse", other_lse, shape[:-1])):
        if tuple(tensor.shape) != expected:
            raise InvalidArgumentError(f"merge: expected {name} of shape {list(expected)}, as output has {list(shape)}, found {list(tensor.shape)}")
    for name, tensor in (("lse", lse), ("other_lse", other_lse)):
        if not tensor.is_floating_point():
            raise InvalidArgumentError(f"merge: expected {name} of a floating-point dtype, found {tensor.dtype}")
