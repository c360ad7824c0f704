"""Flax (linen) modules whose attention takes score functions. Needs flax.

A function given at the call takes the place of the module's; it may capture parameters of the module that calls:

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x):
            slopes = self.param("slopes", nn.initializers.ones, (8,))
            return MultiHeadAttention(num_heads=8)(x, score_mod=zoo.alibi(slopes), mask_mod=zoo.causal())
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from scoremod.errors import InvalidArgumentError
from scoremod.jax.api import flex_attention

ScoreMod = Callable | None


class DotProductAttention(nn.Module):
    """flex_attention as a module without parameters: the fields are its arguments; deterministic_gradients is its `deterministic`.

    Called with query, key and value; or with query and a packed key and value [batch, seq, 2, heads, dim]; or with all three packed
    [batch, seq, 3, heads, dim]. Packed arrays are of layout "BSHD"; in "SBHD" their first two dimensions change places.
    """

    score_mod: ScoreMod = None
    mask_mod: ScoreMod = None
    scale: Any = None
    layout: str = "BSHD"
    deterministic_gradients: bool = False
    backend: str | None = None
    backends: Any = None
    fallback: str | None = None
    deterministic: Any = None  # refused: it would be taken for Flax's own

    def __post_init__(self):
        _refuse_deterministic(self.deterministic)
        super().__post_init__()

    def __call__(self, query, key=None, value=None, *, score_mod=None, mask_mod=None):
        query, key, value = _unpacked(self.layout, query, key, value)
        return flex_attention(
            query,
            key,
            value,
            self.score_mod if score_mod is None else score_mod,
            self.mask_mod if mask_mod is None else mask_mod,
            scale=self.scale,
            layout=self.layout,
            deterministic=self.deterministic_gradients,
            backend=self.backend,
            backends=self.backends,
            fallback=self.fallback,
        )


def _refuse_deterministic(value):
    if value is not None:
        raise InvalidArgumentError(
            f"deterministic: expected no such field, found {value!r}: in Flax it says whether dropout is off, and there is no dropout here; leave "
            "it out. For gradients that are the same bits each time, which it once asked for here, set deterministic_gradients"
        )


def _unpacked(layout, query, key, value):
    packed = query if key is None else key if value is None else None
    if packed is None:
        return query, key, value
    count = 3 if key is None else 2
    if layout not in ("BSHD", "SBHD") or packed.ndim != 5 or packed.shape[2] != count:
        raise InvalidArgumentError(
            f"expected a packed array with {count} as its third of five dimensions in layout BSHD or SBHD, found shape {packed.shape} in "
            f"layout {layout}; or give query, key and value"
        )
    parts = [packed[:, :, i] for i in range(count)]
    return tuple(parts) if count == 3 else (query, *parts)


class MultiHeadAttention(nn.Module):
    """Projections to query, key and value, attention, and the projection back. Inputs are [batch, seq, features].

    num_kv_heads: fewer heads of key and value; num_heads without it. head_dim: features / num_heads without it.
    scale: of the scores; 1 / sqrt(head_dim) without it.
    dtype: of the computation; the inputs' without it. param_dtype: of the parameters.
    """

    num_heads: int
    num_kv_heads: int | None = None
    head_dim: int | None = None
    out_features: int | None = None
    score_mod: ScoreMod = None
    mask_mod: ScoreMod = None
    scale: Any = None
    use_bias: bool = False
    dtype: Any = None
    param_dtype: Any = jnp.float32
    kernel_init: Callable = nn.initializers.lecun_normal()
    deterministic_gradients: bool = False
    backend: str | None = None
    backends: Any = None
    fallback: str | None = None
    deterministic: Any = None  # refused: it would be taken for Flax's own

    def __post_init__(self):
        _refuse_deterministic(self.deterministic)
        super().__post_init__()

    @nn.compact
    def __call__(self, inputs, inputs_kv=None, *, score_mod=None, mask_mod=None):
        """inputs_kv: where key and value come from; inputs without it."""
        inputs_kv = inputs if inputs_kv is None else inputs_kv
        features = inputs.shape[-1]
        if self.head_dim is None and features % self.num_heads:
            raise InvalidArgumentError(f"num_heads: expected a divisor of the {features} features, found {self.num_heads}; or give head_dim")
        head_dim = self.head_dim or features // self.num_heads
        kv_heads = self.num_kv_heads or self.num_heads

        def project(name, heads, source):
            return nn.DenseGeneral((heads, head_dim), axis=-1, name=name, **self._dense())(source)

        attention = DotProductAttention(
            score_mod=self.score_mod,
            mask_mod=self.mask_mod,
            scale=self.scale,
            deterministic_gradients=self.deterministic_gradients,
            backend=self.backend,
            backends=self.backends,
            fallback=self.fallback,
        )
        o = attention(
            project("query", self.num_heads, inputs),
            project("key", kv_heads, inputs_kv),
            project("value", kv_heads, inputs_kv),
            score_mod=score_mod,
            mask_mod=mask_mod,
        )
        return nn.DenseGeneral(self.out_features or features, axis=(-2, -1), name="out", **self._dense())(o)

    def _dense(self):
        return {
            "use_bias": self.use_bias,
            "dtype": self.dtype,
            "param_dtype": self.param_dtype,
            "kernel_init": self.kernel_init,
        }
