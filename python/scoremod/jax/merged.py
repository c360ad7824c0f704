"""Attention over sets of keys that were attended to apart, such as a prefix that many sequences share."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from scoremod.errors import InvalidArgumentError

_ROWS = {"BSHD": (0, 2, 1), "BHSD": (0, 1, 2)}  # of [batch, heads, seq_q] as the output has them


def merge(output: ArrayLike, lse: ArrayLike, other_output: ArrayLike, other_lse: ArrayLike, *, layout: str = "BSHD") -> tuple[jax.Array, jax.Array]:
    """The attention over both sets of keys, from that over each of them with the same queries.

    Parameters
    ----------
    output, other_output : array
        [batch, seq_q, heads, dim], or as `layout` says.
    lse, other_lse : array
        [batch, heads, seq_q]: the natural log of each row's sum of exp of scores, as flex_attention(return_lse=True) gives it. A row without a key in
        one set has -inf there, and a sink belongs to one of the calls alone.
    layout : {"BSHD", "BHSD"}
        The outputs' dimensions.

    Returns
    -------
    (array, array)
        Output and LSE, of the first output's and LSE's dtypes. Both have gradients. Sets may be merged in any order, and the result with more. The
        weights are those of FlashAttention's blocks of keys (Dao et al. 2022, section 3.1).

    Raises
    ------
    InvalidArgumentError
        For shapes that don't fit, and another layout.
    """
    if layout not in _ROWS:
        raise InvalidArgumentError(f"merge: expected layout 'BSHD' or 'BHSD', found {layout!r}")
    output, lse, other_output, other_lse = map(jnp.asarray, (output, lse, other_output, other_lse))
    rows = tuple(output.shape[:-1][place] for place in _ROWS[layout]) if output.ndim == 4 else None
    if rows is None:
        raise InvalidArgumentError(f"merge: expected an output of 4 dimensions ({layout}), found shape {output.shape}")
    for name, array, expected in (("lse", lse, rows), ("other_output", other_output, output.shape), ("other_lse", other_lse, rows)):
        if array.shape != expected:
            raise InvalidArgumentError(f"merge: expected {name} of shape {expected}, as output has {output.shape} ({layout}), found {array.shape}")
    dtype = jnp.promote_types(lse.dtype, jnp.float32)
    first, second = lse.astype(dtype), other_lse.astype(dtype)
    largest = jax.lax.stop_gradient(jnp.maximum(first, second))
    shift = jnp.where(jnp.isneginf(largest), 0, largest)  # no key in either
    weight, other_weight = jnp.exp(first - shift), jnp.exp(second - shift)
    total = weight + other_weight
    divisor = jnp.where(total == 0, 1, total)
    of_rows = [(each / divisor).transpose(_ROWS[layout])[..., None] for each in (weight, other_weight)]
    merged = output.astype(dtype) * of_rows[0] + other_output.astype(dtype) * of_rows[1]
    return merged.astype(output.dtype), jnp.where(total == 0, -jnp.inf, shift + jnp.log(divisor)).astype(lse.dtype)
