"""Fields of TransformerEngine's modules in ours: those that mean the same are taken by their names there, and the rest are refused with what to write."""

import functools

from scoremod.errors import InvalidArgumentError
from scoremod.unknown_arguments import refuse

# Their name -> ours.
_RENAMED = {
    "num_attention_heads": "num_heads",
    "num_gqa_groups": "num_kv_heads",
    "scale_factor": "scale",
    "attn_bias_type": "bias_type",
    "self_attn_bias_type": "bias_type",
    "self_attn_mask_type": "attn_mask_type",
    "mlp_hidden_size": "mlp_features",
    "layernorm_epsilon": "epsilon",
}
# Their name -> the values that ask for what is done anyway, and what to write for others.
_ALWAYS = {
    "float32_logits": ((True, False), "leave it out: scores are float32"),
    "max_segments_per_seq": (range(1, 2**31), "give a number of at least 1: there may be any number of segments"),
    "context_parallel_axis": (("",), "use scoremod.jax.context_parallel.context_parallel_attention inside jax.shard_map"),
    "context_parallel_causal_load_balanced": ((False,), 'use context_parallel_attention(..., striped="dual_chunk_swap")'),
    "context_parallel_strategy": (("DEFAULT", "default"), "use context_parallel_attention(..., strategy=)"),
    "stripe_size": ((None,), "use context_parallel_attention(..., striped=)"),
    "fuse_qkv_params": ((False,), "leave it out: each projection has parameters of its own"),
    "input_layernorm": ((False,), "apply flax.linen.LayerNorm before, or use scoremod.jax.transformer_layer.TransformerLayer"),
    "return_layernorm_output": ((False,), "apply flax.linen.LayerNorm before"),
    "enable_rotary_pos_emb": ((False,), "rotate query and key before DotProductAttention"),
}
_ELSEWHERE = {
    "hidden_size": "leave it out: the inputs' features say it",
    "layernorm_type": "leave it out: it is flax.linen.LayerNorm",
    "mlp_activations": "leave it out: it is gelu",
    "kernel_init": "initialize the modules that make the projections",
    "use_bias": "add biases in the modules that make the projections",
}
# Our field -> how the names of their enumeration's members end.
_ENUMERATIONS = {"attn_mask_type": "_mask", "softmax_type": "_softmax", "bias_type": "", "layer_type": ""}
# Name of a layout -> ours, and the dimension along which arrays are packed. In the layouts with "t" a row has several sequences, which a
# descriptor tells apart.
_LAYOUTS = {"bhsd_bhsd_bhsd": ("BHSD", 2)} | {
    name.format(s): (ours, axis)
    for s, ours in (("bs", "BSHD"), ("sb", "SBHD"), ("t", "BSHD"))
    for name, axis in (("{0}hd_{0}hd_{0}hd", 2), ("{0}hd_{0}2hd", 2), ("{0}3hd", 2), ("{0}hd_{0}h2d", 3), ("{0}h3d", 3))
}


def text_of(value, ending=""):
    """A member of one of their enumerations, or its name, as ours have it."""
    name = str(getattr(value, "name", value)).rpartition(".")[2].lower()
    return name if name == f"no{ending}" else name.removesuffix(ending)


def layout_of(qkv_layout, attn_mask_type):
    """(our layout, the dimension along which arrays are packed). attn_mask_type: our name; it has padding where a row has several sequences."""
    name = text_of(qkv_layout)
    if name not in _LAYOUTS:
        raise InvalidArgumentError(f"qkv_layout: expected one of {', '.join(_LAYOUTS)}, found {qkv_layout!r}; give query, key and value")
    if name.startswith("t") and "padding" not in attn_mask_type:
        raise InvalidArgumentError(
            f"attn_mask_type: expected a type with padding beside qkv_layout={qkv_layout!r}, found {attn_mask_type!r}; give it with a sequence_descriptor "
            'of arrays [batch, seq, ...]. flex_attention(layout="THD", q_offsets=) takes [tokens, heads, dim]'
        )
    return _LAYOUTS[name]


def check_always(name, value):
    """Raises InvalidArgumentError where an argument asks for what is not done."""
    allowed, remedy = _ALWAYS[name]
    if not any(type(each) is type(value) and each == value for each in allowed) and text_of(value) not in allowed:
        raise InvalidArgumentError(f"{name}: expected {' or '.join(map(repr, list(allowed)[:2]))}, found {value!r}; {remedy}")


def as_ours(given, known):
    """Fields by our names."""
    ours = {}
    for name, value in given.items():
        if name in known:
            ours[name] = value
        elif _RENAMED.get(name) in known:
            ours |= {_RENAMED[name]: value} if value is not None else {}
        elif name == "qkv_layout" and "layout" in known:
            ours["layout"] = _module_layout(value, text_of(given.get("attn_mask_type", "no_mask"), "_mask"))
        elif name == "transpose_batch_sequence" and "layout" in known:
            ours["layout"] = "SBHD" if value else "BSHD"
        elif name in _ALWAYS:
            check_always(name, value)
        else:
            return refuse("the module", [name], known, _ELSEWHERE)
    if "attn_mask_type" in known and len(given.keys() - known) and "attn_mask_type" not in ours:
        others = ", ".join(sorted(given.keys() - known))
        raise InvalidArgumentError(
            f'attn_mask_type: expected one beside {others}, found none: in TransformerEngine it is "causal" without one, here "no_mask". Say which is '
            "meant, or import the module from scoremod.jax.transformer_engine"
        )
    return ours | {name: text_of(ours[name], ending) for name, ending in _ENUMERATIONS.items() if name in ours}


def _module_layout(qkv_layout, attn_mask_type):
    layout, axis = layout_of(qkv_layout, attn_mask_type)
    if axis != 2:
        raise InvalidArgumentError(f"qkv_layout: expected one without H3D or H2D in a module, found {qkv_layout!r}; give query, key and value")
    return layout


def takes_other_fields(module):
    """A class decorator: the module is also made by their fields."""
    own, known = module.__init__, set(module.__dataclass_fields__)

    @functools.wraps(own)
    def __init__(self, *arguments, **given):
        own(self, *arguments, **as_ours(given, known))

    module.__init__ = __init__
    return module
