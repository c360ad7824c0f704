"""fused_attn: TransformerEngine's function of that name, with its arguments in their order."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Literal

import jax
from jax.typing import ArrayLike

from scoremod.errors import InvalidArgumentError
from scoremod.jax.module_attention import module_attention, unpacked
from scoremod.jax.named_masks import SequenceDescriptor
from scoremod.jax.other_fields import check_always, layout_of, text_of
from scoremod.signatures import Backends, Modifier, NewSizes


def fused_attn(
    qkv: tuple[ArrayLike, ...],
    bias: ArrayLike | None,
    sequence_descriptor: SequenceDescriptor | None,
    seed: jax.Array | None,
    attn_bias_type: Any,
    attn_mask_type: Any,
    qkv_layout: Any,
    softmax_type: Any,
    scaling_factor: ArrayLike | None,
    dropout_probability: float,
    is_training: bool,
    max_segments_per_seq: int = 1,
    window_size: tuple[int, int] | None = None,
    context_parallel_strategy: Any = "DEFAULT",
    context_parallel_causal_load_balanced: bool = False,
    context_parallel_axis: str = "",
    context_checkpoint_name: str = "context",
    softmax_offset: jax.Array | None = None,
    stripe_size: int | None = None,
    score_mod: Modifier | None = None,
    score_mod_bprop: Modifier | None = None,
    score_mod_tensors: Mapping[str, ArrayLike] | None = None,
    score_mod_bprop_tensors: Mapping[str, ArrayLike] | None = None,
    *,
    mask_mod: Modifier | None = None,
    trust_bprop: bool = False,
    deterministic: bool = False,
    backend: str | None = None,
    backends: Backends = None,
    new_sizes: NewSizes = None,
    fallback: Literal["xla"] | None = None,
) -> jax.Array:
    """TransformerEngine's fused_attn.

    Parameters
    ----------
    qkv : tuple of one, two or three arrays
        Packed as qkv_layout says. In the layouts with T they are [batch, seq, ...] too, and sequence_descriptor says which sequences a row has.
    bias, sequence_descriptor, window_size, scaling_factor, dropout_probability, softmax_offset
        The fields of scoremod.jax.linen.DotProductAttention.
    seed : key of jax.random, optional
        It decides what is dropped in training.
    attn_bias_type, attn_mask_type, qkv_layout, softmax_type
        Members of TransformerEngine's enumerations, or their names.
    score_mod : function, optional
        With score_mod_tensors, which may be empty, a callback that builds on a graph: fused_attention's. Else a plain function: flex_attention's.
    score_mod_bprop, score_mod_tensors, score_mod_bprop_tensors, trust_bprop
        fused_attention's.
    mask_mod, deterministic, backend, backends, new_sizes, fallback
        flex_attention's.
    is_training : bool
        Whether dropout_probability counts.
    context_checkpoint_name : str
        The name by which policies of jax.checkpoint know all results that the backward pass needs.
    max_segments_per_seq, context_parallel_strategy, context_parallel_causal_load_balanced, context_parallel_axis, stripe_size
        TransformerEngine's. Values that ask for what is not done are refused, with what takes their place.

    Returns
    -------
    array
        The output, in the layout of query.

    Raises
    ------
    InvalidArgumentError
        For arguments that don't fit. Other arguments of TransformerEngine's function are refused but for their defaults, and the error says what
        takes their place.
    """
    always = {
        "max_segments_per_seq": max_segments_per_seq,
        "context_parallel_strategy": context_parallel_strategy,
        "context_parallel_causal_load_balanced": context_parallel_causal_load_balanced,
        "context_parallel_axis": context_parallel_axis,
        "stripe_size": stripe_size,
    }
    for name, value in always.items():
        check_always(name, value)
    if not isinstance(qkv, (tuple, list)) or not 1 <= len(qkv) <= 3:
        raise InvalidArgumentError(f"qkv: expected a tuple of one, two or three arrays, found {type(qkv).__name__}; flex_attention takes query, key and value")
    softmax_type = text_of(softmax_type, "_softmax")
    if (softmax_type == "learnable") != (softmax_offset is not None):
        raise InvalidArgumentError(f"softmax_offset: expected one exactly with a learnable softmax, found {softmax_type!r}")
    mask_type = text_of(attn_mask_type, "_mask")
    layout, packed_axis = layout_of(qkv_layout, mask_type)
    fields = SimpleNamespace(
        layout=layout,
        scale=scaling_factor,
        attn_mask_type=mask_type,
        window_size=window_size,
        bias_type=text_of(attn_bias_type),
        softmax_type=softmax_type,
        attention_dropout=dropout_probability,
        score_mod=score_mod,
        mask_mod=mask_mod,
        score_mod_bprop=score_mod_bprop,
        trust_bprop=trust_bprop,
        deterministic_gradients=deterministic,
        backend=backend,
        backends=backends,
        new_sizes=new_sizes,
        fallback=fallback,
        context_checkpoint_name=context_checkpoint_name,
    )
    if dropout_probability and is_training and seed is None:
        raise InvalidArgumentError("seed: expected a key of jax.random beside dropout_probability, found none")
    return module_attention(
        fields,
        *unpacked(layout, *qkv, *[None] * (3 - len(qkv)), axis=packed_axis),
        sink_of=lambda heads: softmax_offset.reshape(heads),  # pyright: ignore[reportOptionalMemberAccess]
        dropout_key=seed if dropout_probability and is_training else None,
        bias=bias,
        sequence_descriptor=sequence_descriptor,
        score_mod_tensors=score_mod_tensors,
        score_mod_bprop_tensors=score_mod_bprop_tensors,
    )
