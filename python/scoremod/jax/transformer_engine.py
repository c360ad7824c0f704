"""TransformerEngine's names for JAX with its defaults, so that a program changes one import. Needs flax.

    from scoremod.jax.transformer_engine import AttnMaskType, DotProductAttention, SequenceDescriptor, fused_attn

A module without a mask type is causal, as it is there; scoremod.jax.linen's attends to everything.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from scoremod.errors import InvalidArgumentError
from scoremod.jax.fused_attn import fused_attn as fused_attn
from scoremod.jax.module_attention import module_attention, unpacked
from scoremod.jax.named_masks import SequenceDescriptor as SequenceDescriptor
from scoremod.jax.other_fields import check_always, layout_of, text_of
from scoremod.signatures import Backends, Modifier, NewSizes


class AttnBiasType(enum.Enum):
    """The place where a bias is added."""

    NO_BIAS = enum.auto()
    PRE_SCALE_BIAS = enum.auto()
    POST_SCALE_BIAS = enum.auto()


class AttnMaskType(enum.Enum):
    """The keys that a query sees."""

    NO_MASK = enum.auto()
    PADDING_MASK = enum.auto()
    CAUSAL_MASK = enum.auto()
    PADDING_CAUSAL_MASK = enum.auto()
    CAUSAL_BOTTOM_RIGHT_MASK = enum.auto()
    PADDING_CAUSAL_BOTTOM_RIGHT_MASK = enum.auto()


class AttnSoftmaxType(enum.Enum):
    """The terms of the denominator of the softmax beside its weights."""

    VANILLA_SOFTMAX = enum.auto()
    OFF_BY_ONE_SOFTMAX = enum.auto()
    LEARNABLE_SOFTMAX = enum.auto()


class QKVLayout(enum.Enum):
    """The dimensions of query, key and value, and which of them are packed."""

    BS3HD = enum.auto()
    BSHD_BS2HD = enum.auto()
    BSHD_BSHD_BSHD = enum.auto()
    T3HD = enum.auto()
    THD_T2HD = enum.auto()
    THD_THD_THD = enum.auto()


class CPStrategy(enum.Enum):
    """The way in which a sharded sequence is attended to."""

    DEFAULT = enum.auto()
    ALL_GATHER = enum.auto()
    RING = enum.auto()


class DotProductAttention(nn.Module):
    """TransformerEngine's module of that name: its fields in their order, with its defaults.

    head_dim, num_attention_heads, num_gqa_groups: what the arrays must have; as many groups as heads without num_gqa_groups.
    attn_mask_type: a member of AttnMaskType or its name; causal without one.
    attn_bias_type: "post_scale_bias" without one where the call has a bias.
    qkv_layout: a member of QKVLayout or its name. Arrays are [batch, seq, heads, dim], where packed with 3 or 2 before heads; with
        transpose_batch_sequence, the default, [seq, batch, ...].
    window_size, softmax_type, attention_dropout, dropout_rng_name, score_mod, score_mod_bprop: those of scoremod.jax.linen.DotProductAttention,
        whose fields mask_mod, trust_bprop, deterministic_gradients, backend, backends, new_sizes and fallback come after TransformerEngine's.
    dtype, float32_logits, max_segments_per_seq: change nothing. Outputs have query's dtype.
    context_checkpoint_name: the name by which policies of jax.checkpoint know all results that the backward pass needs.
    context_parallel_*: refused where they ask for more than their defaults, and the error says what takes their place.
    """

    head_dim: int
    num_attention_heads: int
    num_gqa_groups: int | None = None
    attention_dropout: float = 0.0
    attn_mask_type: Any = "causal"
    attn_bias_type: Any = None
    dtype: Any = jnp.float32
    dropout_rng_name: str = "dropout"
    float32_logits: bool = False
    qkv_layout: Any = "bshd_bshd_bshd"
    scale_factor: ArrayLike | None = None
    transpose_batch_sequence: bool = True
    window_size: tuple[int, int] | None = None
    max_segments_per_seq: int | None = 1
    context_parallel_causal_load_balanced: bool = False
    context_parallel_axis: str = ""
    context_parallel_strategy: Any = "DEFAULT"
    context_checkpoint_name: str = "context"
    softmax_type: Any = "vanilla"
    score_mod: Modifier | None = None
    score_mod_bprop: Modifier | None = None
    mask_mod: Modifier | None = None
    trust_bprop: bool = False
    deterministic_gradients: bool = False
    backend: str | None = None
    backends: Backends = None
    new_sizes: NewSizes = None
    fallback: str | None = None

    @nn.compact
    def __call__(
        self,
        query: ArrayLike,
        key: ArrayLike | None = None,
        value: ArrayLike | None = None,
        sequence_descriptor: SequenceDescriptor | None = None,
        bias: ArrayLike | None = None,
        *,
        deterministic: bool = False,
        mask: Any = None,
        score_mod_tensors: Mapping[str, ArrayLike] | None = None,
        score_mod_bprop_tensors: Mapping[str, ArrayLike] | None = None,
    ) -> jax.Array:
        """The output, in query's layout. deterministic: whether there is no dropout. mask: refused; a sequence_descriptor takes its place. The
        tensors are scoremod.jax.fused_attention's, without which score_mod is a plain function."""
        if mask is not None:
            raise InvalidArgumentError("mask: expected none, found one; give sequence_descriptor=SequenceDescriptor.from_seqlens(lengths), or mask_mod")
        for name in ("context_parallel_causal_load_balanced", "context_parallel_axis", "context_parallel_strategy"):
            check_always(name, getattr(self, name))
        layout, packed_axis = layout_of(self.qkv_layout, text_of(self.attn_mask_type, "_mask"))
        if self.transpose_batch_sequence and layout == "BSHD":
            layout = "SBHD"
        drops = self.attention_dropout and not deterministic
        return module_attention(
            self._fields(layout, bias),
            *unpacked(layout, query, key, value, axis=packed_axis),
            sink_of=self._softmax_offset,
            dropout_key=self.make_rng(self.dropout_rng_name) if drops else None,
            bias=bias,
            sequence_descriptor=sequence_descriptor,
            score_mod_tensors=score_mod_tensors,
            score_mod_bprop_tensors=score_mod_bprop_tensors,
        )

    def _fields(self, layout, bias):
        """scoremod.jax.linen's fields."""
        shared = (
            *("head_dim", "window_size", "attention_dropout", "score_mod", "mask_mod", "score_mod_bprop", "trust_bprop", "deterministic_gradients"),
            *("backend", "backends", "new_sizes", "fallback", "context_checkpoint_name"),
        )
        bias_type = ("no_bias" if bias is None else "post_scale_bias") if self.attn_bias_type is None else text_of(self.attn_bias_type)
        return SimpleNamespace(
            layout=layout,
            scale=self.scale_factor,
            attn_mask_type=text_of(self.attn_mask_type, "_mask"),
            bias_type=bias_type,
            softmax_type=text_of(self.softmax_type, "_softmax"),
            num_heads=self.num_attention_heads,
            num_kv_heads=self.num_gqa_groups or self.num_attention_heads,
            **{name: getattr(self, name) for name in shared},
        )

    def _softmax_offset(self, heads):
        return self.param("softmax_offset", nn.initializers.zeros, (1, heads, 1, 1), jnp.float32).reshape(heads)
