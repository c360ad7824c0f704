"""Flax NNX modules whose attention takes score functions, with the fields of scoremod.jax.linen's. Needs flax.

A function given at the call takes the place of the module's; it may capture parameters of the module that calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import ArrayLike, DTypeLike

from scoremod.errors import InvalidArgumentError
from scoremod.jax import linen
from scoremod.jax.module_attention import module_attention, refuse_deterministic
from scoremod.jax.other_fields import as_ours

# Field -> its value without one.
_FIELDS = {name: field.default for name, field in linen.DotProductAttention.__dataclass_fields__.items() if name not in ("parent", "name")}


class DotProductAttention(nnx.Module):
    """scoremod.jax.linen.DotProductAttention for NNX. With softmax_type="learnable" it has a parameter softmax_offset, for which it is given
    num_heads."""

    attention_dropout: float
    dropout_rng_name: str
    num_heads: int | None
    param_dtype: Any
    softmax_type: str
    softmax_offset: nnx.Param[jax.Array]

    def __init__(self, *, rngs: nnx.Rngs | None = None, **fields: Any) -> None:
        """fields: those of the linen module. rngs: nnx.Rngs, of which nothing is needed here; other modules are made with them."""
        fields = _FIELDS | as_ours(fields, set(_FIELDS))
        refuse_deterministic(fields.pop("deterministic"))
        for name, value in fields.items():
            setattr(self, name, value)
        if self.softmax_type == "learnable":
            if self.num_heads is None:
                raise InvalidArgumentError('num_heads: expected the number of query heads with softmax_type="learnable", found none')
            self.softmax_offset = nnx.Param(jnp.zeros((self.num_heads,), self.param_dtype))

    def __call__(
        self,
        query: ArrayLike,
        key: ArrayLike | None = None,
        value: ArrayLike | None = None,
        *,
        deterministic: bool = True,
        rngs: nnx.Rngs | None = None,
        **call: Any,
    ) -> Any:
        """deterministic: whether there is no dropout, which otherwise takes a key of rngs. call: the keywords of the linen module's call."""
        dropout_key = None
        if self.attention_dropout and not deterministic:
            if rngs is None:
                raise InvalidArgumentError("rngs: expected nnx.Rngs beside deterministic=False and attention_dropout, found none")
            dropout_key = getattr(rngs, self.dropout_rng_name)()
        return module_attention(self, query, key, value, sink_of=lambda heads: self.softmax_offset[...], dropout_key=dropout_key, **call)


class MultiHeadAttention(nnx.Module):
    """Projections to query, key and value, attention, and the projection back, as scoremod.jax.linen.MultiHeadAttention has them but for decode:
    NNX modules that keep a cache call DotProductAttention with it."""

    query: nnx.LinearGeneral
    key: nnx.LinearGeneral
    value: nnx.LinearGeneral
    attention: DotProductAttention
    out: nnx.LinearGeneral

    def __init__(
        self,
        num_heads: int,
        in_features: int,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        out_features: int | None = None,
        use_bias: bool = False,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        kernel_init: Callable[..., Any] = nnx.initializers.lecun_normal(),
        rngs: nnx.Rngs,
        **fields: Any,
    ) -> None:
        """fields: DotProductAttention's."""
        if head_dim is None and in_features % num_heads:
            raise InvalidArgumentError(f"num_heads: expected a divisor of the {in_features} features, found {num_heads}; or give head_dim")
        head_dim, kv_heads = head_dim or in_features // num_heads, num_kv_heads or num_heads
        dense: dict[str, Any] = {"use_bias": use_bias, "dtype": dtype, "param_dtype": param_dtype, "kernel_init": kernel_init, "rngs": rngs}
        self.query = nnx.LinearGeneral(in_features, (num_heads, head_dim), **dense)
        self.key = nnx.LinearGeneral(in_features, (kv_heads, head_dim), **dense)
        self.value = nnx.LinearGeneral(in_features, (kv_heads, head_dim), **dense)
        self.attention = DotProductAttention(num_heads=num_heads, num_kv_heads=kv_heads, head_dim=head_dim, param_dtype=param_dtype, rngs=rngs, **fields)
        self.out = nnx.LinearGeneral((num_heads, head_dim), out_features or in_features, axis=(-2, -1), **dense)

    def __call__(self, inputs: jax.Array, inputs_kv: jax.Array | None = None, **call: Any) -> jax.Array:
        """inputs_kv: where key and value come from; inputs without it. call: DotProductAttention's keywords of a call."""
        inputs_kv = inputs if inputs_kv is None else inputs_kv
        return self.out(self.attention(self.query(inputs), self.key(inputs_kv), self.value(inputs_kv), **call))
