"""Flax (linen) modules whose attention takes score functions. Needs flax.

A function given at the call takes the place of the module's; it may capture parameters of the module that calls:

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x):
            slopes = self.param("slopes", nn.initializers.ones, (8,))
            return MultiHeadAttention(num_heads=8)(x, score_mod=zoo.alibi(slopes), mask_mod=zoo.causal())
"""

from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from numpy.typing import NDArray

from scoremod.errors import InvalidArgumentError
from scoremod.jax.decode_cache import appended, within_length
from scoremod.jax.module_attention import module_attention, refuse_deterministic
from scoremod.jax.named_masks import SequenceDescriptor as SequenceDescriptor
from scoremod.jax.other_fields import takes_other_fields
from scoremod.signatures import Modifier

ScoreMod = Modifier | None
# Inputs whose last dimension is the features.
Array = jax.Array | NDArray[Any]


@takes_other_fields
class DotProductAttention(nn.Module):
    """flex_attention as a module: the fields are its arguments; deterministic_gradients is its `deterministic`. It has a parameter with
    softmax_type="learnable" alone.

    attn_mask_type: "no_mask", "padding", "causal", "causal_bottom_right" and these with padding ("padding_causal"), beside mask_mod.
    window_size: (left, right), how many positions before and after its own a query sees, inclusive; -1 for no bound.
    softmax_type: "vanilla"; "off_by_one", one more in each sum; "learnable", a parameter softmax_offset [heads], whose exp is in each sum.
    attention_dropout: the probability with which a weight is left out in calls with deterministic=False, by the rng `dropout_rng_name`.
    bias_type: "no_bias", "pre_scale_bias" or "post_scale_bias": where the call's bias is added, before score_mod.
    num_heads, num_kv_heads, head_dim: what the arrays must have, where they are given.
    score_mod_bprop, trust_bprop: fused_attention's. With the first, or with score_mod_tensors at the call, which may be empty, score_mod is a
        callback that builds on a graph.
    context_checkpoint_name: a name of all results that the backward pass needs, for policies of jax.checkpoint, beside CHECKPOINT_NAMES.

    Called with query, key and value; or with query and a packed key and value [batch, seq, 2, heads, dim]; or with all three packed
    [batch, seq, 3, heads, dim]. Packed arrays are of layout "BSHD"; in "SBHD" their first two dimensions change places.

    Fields of TransformerEngine's module that mean the same are taken by their names there, with attn_mask_type beside them: it is "causal" there
    without one.
    """

    score_mod: ScoreMod = None
    mask_mod: ScoreMod = None
    scale: Any = None
    layout: str = "BSHD"
    deterministic_gradients: bool = False
    backend: str | None = None
    backends: Any = None
    new_sizes: str | None = None
    fallback: str | None = None
    deterministic: Any = None  # refused: it would be taken for Flax's own
    attn_mask_type: str = "no_mask"
    window_size: Any = None
    softmax_type: str = "vanilla"
    attention_dropout: float = 0.0
    dropout_rng_name: str = "dropout"
    bias_type: str = "no_bias"
    param_dtype: Any = jnp.float32
    score_mod_bprop: ScoreMod = None
    trust_bprop: bool = False
    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    context_checkpoint_name: str | None = None

    def __post_init__(self) -> None:
        refuse_deterministic(self.deterministic)
        super().__post_init__()

    @nn.compact
    def __call__(
        self,
        query: ArrayLike,
        key: ArrayLike | None = None,
        value: ArrayLike | None = None,
        *,
        score_mod: ScoreMod = None,
        mask_mod: ScoreMod = None,
        bias: ArrayLike | None = None,
        sequence_descriptor: SequenceDescriptor | None = None,
        deterministic: bool = True,
        score_mod_tensors: Mapping[str, ArrayLike] | None = None,
        score_mod_bprop_tensors: Mapping[str, ArrayLike] | None = None,
        first_query: ArrayLike | None = None,
        **float8: Any,
    ) -> Any:
        """bias: [batch, heads, seq_q, seq_kv], of which sizes of 1 repeat. sequence_descriptor: a SequenceDescriptor. deterministic: whether
        there is no dropout. score_mod_tensors, score_mod_bprop_tensors: fused_attention's. first_query: the position of the first query among the
        keys, as in decoding; no query then sees keys after its own. float8: flex_attention's arguments for FP8 arrays: descale_q, descale_k, descale_v,
        scale_o, scale_dq, scale_dk, scale_dv, descale_d_o, out_dtype and return_amax_o, which returns (output, amax_o)."""
        drops = self.attention_dropout and not deterministic
        return module_attention(
            self,
            query,
            key,
            value,
            sink_of=lambda heads: self.param("softmax_offset", nn.initializers.zeros, (heads,), self.param_dtype),
            dropout_key=self.make_rng(self.dropout_rng_name) if drops else None,
            score_mod=score_mod,
            mask_mod=mask_mod,
            bias=bias,
            sequence_descriptor=sequence_descriptor,
            score_mod_tensors=score_mod_tensors,
            score_mod_bprop_tensors=score_mod_bprop_tensors,
            first_query=first_query,
            **float8,
        )


@takes_other_fields
class MultiHeadAttention(nn.Module):
    """Projections to query, key and value, attention, and the projection back. Inputs are [batch, seq, features].

    num_kv_heads: fewer heads of key and value; num_heads without it. head_dim: features / num_heads without it.
    scale: of the scores; 1 / sqrt(head_dim) without it.
    attn_mask_type, window_size, softmax_type, attention_dropout, dropout_rng_name, bias_type, score_mod_bprop, trust_bprop,
        context_checkpoint_name: DotProductAttention's.
    decode: keeps keys and values in Flax's collection "cache", for one token after the other. init() is given inputs as long as the cache is to
        be; apply(variables, tokens, mutable=["cache"]) then has the next token, or several. Functions see positions in the whole sequence, and
        no query sees later keys.
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
    kernel_init: Callable[..., Any] = nn.initializers.lecun_normal()
    deterministic_gradients: bool = False
    backend: str | None = None
    backends: Any = None
    new_sizes: str | None = None
    fallback: str | None = None
    deterministic: Any = None  # refused: it would be taken for Flax's own
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

    def __post_init__(self) -> None:
        refuse_deterministic(self.deterministic)
        super().__post_init__()

    @nn.compact
    def __call__(
        self,
        inputs: Array,
        inputs_kv: Array | None = None,
        *,
        score_mod: ScoreMod = None,
        mask_mod: ScoreMod = None,
        bias: ArrayLike | None = None,
        sequence_descriptor: SequenceDescriptor | None = None,
        deterministic: bool = True,
        score_mod_tensors: Mapping[str, ArrayLike] | None = None,
        score_mod_bprop_tensors: Mapping[str, ArrayLike] | None = None,
    ) -> jax.Array:
        """inputs_kv: where key and value come from; inputs without it. The others are DotProductAttention's."""
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
            new_sizes=self.new_sizes,
            fallback=self.fallback,
            attn_mask_type=self.attn_mask_type,
            window_size=self.window_size,
            softmax_type=self.softmax_type,
            attention_dropout=self.attention_dropout,
            dropout_rng_name=self.dropout_rng_name,
            bias_type=self.bias_type,
            param_dtype=self.param_dtype,
            score_mod_bprop=self.score_mod_bprop,
            trust_bprop=self.trust_bprop,
            context_checkpoint_name=self.context_checkpoint_name,
        )
        query, key, value = (
            project(name, heads, source)
            for name, heads, source in (("query", self.num_heads, inputs), ("key", kv_heads, inputs_kv), ("value", kv_heads, inputs_kv))
        )
        first = None
        if self.decode:
            key, value, first = appended(self, key, value, self.attn_mask_type, sequence_descriptor)
        o = attention(
            query,
            key,
            value,
            score_mod=score_mod,
            mask_mod=mask_mod,
            bias=bias,
            sequence_descriptor=sequence_descriptor,
            deterministic=deterministic,
            score_mod_tensors=score_mod_tensors,
            score_mod_bprop_tensors=score_mod_bprop_tensors,
            first_query=first,
        )
        if first is not None:
            o = within_length(o, key, first)
        return nn.DenseGeneral(self.out_features or features, axis=(-2, -1), name="out", **self._dense())(o)

    def _dense(self) -> dict[str, Any]:
        return {
            "use_bias": self.use_bias,
            "dtype": self.dtype,
            "param_dtype": self.param_dtype,
            "kernel_init": self.kernel_init,
        }
