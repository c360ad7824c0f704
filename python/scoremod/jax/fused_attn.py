"""fused_attn: TransformerEngine's function of that name, with its arguments in their order."""

from types import SimpleNamespace

from scoremod.errors import InvalidArgumentError
from scoremod.jax.module_attention import module_attention
from scoremod.jax.other_fields import check_always, layout_of, text_of


def fused_attn(
    qkv,
    bias,
    sequence_descriptor,
    seed,
    attn_bias_type,
    attn_mask_type,
    qkv_layout,
    softmax_type,
    scaling_factor,
    dropout_probability,
    is_training,
    max_segments_per_seq=1,
    window_size=None,
    context_parallel_strategy="DEFAULT",
    context_parallel_causal_load_balanced=False,
    context_parallel_axis="",
    context_checkpoint_name="context",
    softmax_offset=None,
    stripe_size=None,
    score_mod=None,
    score_mod_bprop=None,
    score_mod_tensors=None,
    score_mod_bprop_tensors=None,
    *,
    mask_mod=None,
    trust_bprop=False,
    deterministic=False,
    backend=None,
    backends=None,
    new_sizes=None,
    fallback=None,
):
    """qkv: a tuple of one, two or three arrays, packed as qkv_layout says. Types are members of TransformerEngine's enumerations or their names; seed is a
    key of jax.random. score_mod is a callback that builds on a graph where score_mod_tensors are given, which may be empty; else a plain function, beside
    mask_mod. Arguments that ask for what is elsewhere here raise InvalidArgumentError that says where."""
    always = {
        "max_segments_per_seq": max_segments_per_seq,
        "context_parallel_strategy": context_parallel_strategy,
        "context_parallel_causal_load_balanced": context_parallel_causal_load_balanced,
        "context_parallel_axis": context_parallel_axis,
        "context_checkpoint_name": context_checkpoint_name,
        "stripe_size": stripe_size,
    }
    for name, value in always.items():
        check_always(name, value)
    if not isinstance(qkv, (tuple, list)) or not 1 <= len(qkv) <= 3:
        raise InvalidArgumentError(f"qkv: expected a tuple of one, two or three arrays, found {type(qkv).__name__}; flex_attention takes query, key and value")
    softmax_type = text_of(softmax_type, "_softmax")
    if (softmax_type == "learnable") != (softmax_offset is not None):
        raise InvalidArgumentError(f"softmax_offset: expected one exactly with a learnable softmax, found {softmax_type!r}")
    fields = SimpleNamespace(
        layout=layout_of(qkv_layout),
        scale=scaling_factor,
        attn_mask_type=text_of(attn_mask_type, "_mask"),
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
    )
    if dropout_probability and is_training and seed is None:
        raise InvalidArgumentError("seed: expected a key of jax.random beside dropout_probability, found none")
    return module_attention(
        fields,
        *qkv,
        *[None] * (3 - len(qkv)),
        sink_of=lambda heads: softmax_offset.reshape(heads),
        dropout_key=seed if dropout_probability and is_training else None,
        bias=bias,
        sequence_descriptor=sequence_descriptor,
        score_mod_tensors=score_mod_tensors,
        score_mod_bprop_tensors=score_mod_bprop_tensors,
    )
