"""The call of flex_attention that a module's fields and the arguments of its call ask for: named masks, windows, biases and softmaxes, and graph callbacks
as well as plain functions."""

import math

from scoremod.callback_arguments import Callbacks
from scoremod.errors import InvalidArgumentError
from scoremod.jax.api import flex_attention
from scoremod.jax.call import GRADIENT_FACTORS
from scoremod.jax.decode_cache import at_positions
from scoremod.jax.fused_attention import graph_modifier, score_sizes
from scoremod.jax.kept_results import also_named
from scoremod.jax.named_masks import biased, named_mask
from scoremod.jax.zoo import all_of
from scoremod.sizes import sizes_of
from scoremod.unknown_arguments import arguments_of, refuse

# Arguments of flex_attention for FP8 arrays, which a module's call passes on.
FLOAT8_ARGUMENTS = ("descale_q", "descale_k", "descale_v", "scale_o", *GRADIENT_FACTORS, "out_dtype", "return_amax_o")


def module_attention(
    fields,
    query,
    key,
    value,
    *,
    sink_of=None,
    dropout_key=None,
    score_mod=None,
    mask_mod=None,
    bias=None,
    sequence_descriptor=None,
    score_mod_tensors=None,
    score_mod_bprop_tensors=None,
    first_query=None,
    **float8,
):
    """fields: what has the fields of scoremod.jax.linen.DotProductAttention. sink_of: a function of the number of query heads, the learned
    sink. dropout_key: drops weights; without it there is no dropout. float8: FLOAT8_ARGUMENTS. The rest is that module's."""
    unknown = [name for name in float8 if name not in FLOAT8_ARGUMENTS]
    if unknown:
        refuse("the module's call", unknown, [*arguments_of(module_attention)[6:], *FLOAT8_ARGUMENTS], {})
    query, key, value = unpacked(fields.layout, query, key, value)
    sizes = sizes_of(fields.layout, query, key, value)
    _check_sizes(fields, sizes)
    scale = 1 / math.sqrt(sizes.dim_qk) if fields.scale is None else fields.scale
    score_mod = fields.score_mod if score_mod is None else score_mod
    callbacks = Callbacks(fields.score_mod_bprop, score_mod_tensors, score_mod_bprop_tensors, fields.trust_bprop)
    if callbacks.are_given():
        score_mod = graph_modifier(score_sizes(fields.layout, query, key, value, {}), score_mod, **callbacks._asdict())
    score_mod = biased(score_mod, bias, fields.bias_type, scale)
    mask_type = fields.attn_mask_type if first_query is None else "causal"
    named, lengths = named_mask(mask_type, fields.window_size, sequence_descriptor, sizes.seq_q, sizes.seq_kv)
    mask_mod = fields.mask_mod if mask_mod is None else mask_mod
    if first_query is not None:
        named, mask_mod = at_positions(named, first_query, 2), at_positions(mask_mod, first_query, 2)
        score_mod = at_positions(score_mod, first_query, 3)
    masks = [mask for mask in (named, mask_mod) if mask is not None]
    dropout = {} if dropout_key is None else {"dropout_rate": fields.attention_dropout, "dropout_key": dropout_key}
    with also_named(fields.context_checkpoint_name):
        return flex_attention(
            query,
            key,  # pyright: ignore[reportArgumentType]
            value,  # pyright: ignore[reportArgumentType]
            score_mod,
            all_of(*masks) if len(masks) == 2 else masks[0] if masks else None,
            scale=fields.scale,
            layout=fields.layout,
            lengths=lengths,
            sink=_sink(fields.softmax_type, sink_of, sizes.heads_q),
            **dropout,
            deterministic=fields.deterministic_gradients,
            backend=fields.backend,
            backends=fields.backends,
            new_sizes=fields.new_sizes,
            fallback=fields.fallback,
            **float8,
        )


def _check_sizes(fields, sizes):
    for name, found in (("num_heads", sizes.heads_q), ("num_kv_heads", sizes.heads_kv), ("head_dim", sizes.dim_qk)):
        expected = getattr(fields, name, None)
        if expected is not None and expected != found:
            raise InvalidArgumentError(f"{name}: expected arrays of {expected}, as the field says, found {found} in layout {fields.layout}")


def _sink(softmax_type, sink_of, heads):
    if softmax_type == "vanilla":
        return None
    if softmax_type == "off_by_one":
        return 0.0
    if softmax_type == "learnable":
        return sink_of(heads)
    raise InvalidArgumentError(f'softmax_type: expected "vanilla", "off_by_one" or "learnable", found {softmax_type!r}')


def refuse_deterministic(value):
    if value is not None:
        raise InvalidArgumentError(
            f"deterministic: expected no such field, found {value!r}. To turn dropout off, give deterministic=True at each call; for gradients with "
            "the same bits each time, set deterministic_gradients"
        )


def unpacked(layout, query, key, value, axis=2):
    """query, key and value of arrays that may be packed along a dimension into one or two."""
    packed = query if key is None else key if value is None else None
    if packed is None:
        return query, key, value
    count = 3 if key is None else 2
    if layout not in ("BSHD", "SBHD") or packed.ndim != 5 or packed.shape[axis] != count:
        raise InvalidArgumentError(
            f"expected a packed array with {count} as its {'third' if axis == 2 else 'fourth'} of five dimensions in layout BSHD or SBHD, found shape "
            f"{packed.shape} in layout {layout}; or give query, key and value"
        )
    parts = [packed[(slice(None),) * axis + (i,)] for i in range(count)]
    return tuple(parts) if count == 3 else (query, *parts)
