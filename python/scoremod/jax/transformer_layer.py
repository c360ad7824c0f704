"""A Transformer's layer whose self-attention takes score functions. Needs flax."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from scoremod.errors import InvalidArgumentError
from scoremod.jax.linen import MultiHeadAttention, ScoreMod
from scoremod.jax.other_fields import takes_other_fields

LAYER_TYPES = ("encoder", "decoder")


@takes_other_fields
class TransformerLayer(nn.Module):
    """Attention and two dense layers, each after a layer norm and added to what it is of. Inputs are [batch, seq, features].

    layer_type: "encoder", or "decoder", which also attends to the output of an encoder. Score functions, masks, biases and the cache are those of
        the self-attention; attention to an encoder's output has none.
    mlp_features: of the inner dense layer; 4 * features without it. hidden_dropout: of what each part adds, in calls with deterministic=False.
    The rest is MultiHeadAttention's.
    """

    num_heads: int
    num_kv_heads: int | None = None
    head_dim: int | None = None
    mlp_features: int | None = None
    layer_type: str = "encoder"
    hidden_dropout: float = 0.0
    epsilon: float = 1e-6
    score_mod: ScoreMod = None
    mask_mod: ScoreMod = None
    scale: Any = None
    use_bias: bool = False
    dtype: Any = None
    param_dtype: Any = jnp.float32
    deterministic_gradients: bool = False
    backend: str | None = None
    backends: Any = None
    new_sizes: str | None = None
    fallback: str | None = None
    attn_mask_type: str = "no_mask"
    window_size: Any = None
    softmax_type: str = "vanilla"
    attention_dropout: float = 0.0
    dropout_rng_name: str = "dropout"
    bias_type: str = "no_bias"
    score_mod_bprop: ScoreMod = None
    trust_bprop: bool = False
    decode: bool = False
    context_checkpoint_name: str | None = None

    @nn.compact
    def __call__(self, inputs: jax.Array, encoded: jax.Array | None = None, *, deterministic: bool = True, **call: Any) -> jax.Array:
        """encoded: a decoder's encoder output [batch, seq, features]. call: MultiHeadAttention's keywords of a call, for the self-attention."""
        if self.layer_type not in LAYER_TYPES:
            raise InvalidArgumentError(f"layer_type: expected one of {', '.join(LAYER_TYPES)}, found {self.layer_type!r}")
        if (encoded is None) == (self.layer_type == "decoder"):
            found = "none" if encoded is None else "one"
            raise InvalidArgumentError(f"encoded: expected an encoder's output exactly for layer_type='decoder', found {found} for {self.layer_type!r}")
        own = ("score_mod", "mask_mod", "attn_mask_type", "window_size", "bias_type", "score_mod_bprop", "trust_bprop", "decode")
        attention = self._attention("self_attention", **{field: getattr(self, field) for field in own})
        x = self._added(inputs, attention(self._norm("self_attention_norm")(inputs), deterministic=deterministic, **call), deterministic)
        if encoded is not None:
            cross = self._attention("cross_attention")
            x = self._added(x, cross(self._norm("cross_attention_norm")(x), encoded, deterministic=deterministic), deterministic)
        return self._added(x, self._mlp(self._norm("mlp_norm")(x)), deterministic)

    def _attention(self, name, **fields):
        shared = (
            *("num_heads", "num_kv_heads", "head_dim", "scale", "use_bias", "dtype", "param_dtype", "deterministic_gradients"),
            *("backend", "backends", "new_sizes", "fallback", "softmax_type", "attention_dropout", "dropout_rng_name", "context_checkpoint_name"),
        )
        return MultiHeadAttention(name=name, **{field: getattr(self, field) for field in shared}, **fields)

    def _norm(self, name):
        return nn.LayerNorm(epsilon=self.epsilon, dtype=self.dtype, param_dtype=self.param_dtype, name=name)

    def _added(self, x, change, deterministic):
        return x + nn.Dropout(self.hidden_dropout, rng_collection=self.dropout_rng_name)(change, deterministic=deterministic)

    def _mlp(self, x):
        features = x.shape[-1]
        types: dict[str, Any] = {"use_bias": self.use_bias, "dtype": self.dtype, "param_dtype": self.param_dtype}
        return nn.Dense(features, name="mlp_out", **types)(nn.gelu(nn.Dense(self.mlp_features or 4 * features, name="mlp_in", **types)(x)))
