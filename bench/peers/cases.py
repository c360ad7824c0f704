"""The problems that scoremod and its peers are timed on: modifiers at shapes. Functions are such that FlexAttention takes them too. Sizes follow the
options, so that a small copy of each can be checked on a CPU."""

from dataclasses import replace

import masks
import scores
import unseen
from shapes import SHAPES

# Peers of cases that a flash-attention call can say.
FLASH = ("fa4", "torch_sdpa_cudnn")
FLEX = ("flex_triton", "flex_flash")
EVERYTHING = (*FLASH, *FLEX, "torch_sdpa")
# With block masks that are made in each call, as packed documents need them.
MASK_IN_CALL = ("flex_triton_mask_in_call", "flex_flash_mask_in_call", "fa4_mask_in_call")

MODIFIERS = {name: make for module in (masks, scores) for name, make in module.MODIFIERS.items()}


def at(shape_names, modifiers, peers):
    return [(modifier, shape, peers) for shape in shape_names for modifier in modifiers]


def _table():
    """(modifier, name of the shape, peers), the most telling first, so that a run that is cut short has those."""
    lengths, heads, dims = ("1k", "2k", "8k", "16k"), ("gqa_32_8", "gqa_64_8"), ("d64", "d256", "d192_128", "d96")
    others = (*lengths, *heads, *dims, "f16")
    soft_caps = ("soft_cap", "soft_cap_causal")
    learned = ("alibi_causal", "alibi_causal_learned", "t5_buckets", "t5_buckets_learned", "relative_table_learned")
    return [
        *at(("",), ("full", "causal"), EVERYTHING),
        *at(others, ("causal", "full"), FLASH),
        *at(("packed",), masks.VARLEN, ("fa4", "flex_flash", "torch_sdpa", "flex_flash_mask_in_call")),
        *at(others, ("window_512",), ("fa4",)),
        *at(("",), (*soft_caps, "window_512"), EVERYTHING),
        *at(("",), ("documents", "documents_causal", "documents_skewed"), (*EVERYTHING, *MASK_IN_CALL)),
        *at(others, ("documents_causal",), ("fa4", "flex_flash")),
        *at(("",), masks.DETERMINISTIC, (*FLASH, "torch_sdpa")),
        *at(("",), masks.VARYING, (*FLEX, "flex_flash_mask_in_call")),
        *at(("",), ("prefix_1024", "padding_75", "neighbourhood_2d", "dilated_2", "global_64_window_512"), EVERYTHING),
        *at(("",), learned, EVERYTHING),
        *at([name for name in SHAPES if "_of_" in name], ("decode",), EVERYTHING),
        *at(("d256", "gqa_32_8"), ("soft_cap_causal",), ("fa4", "flex_flash")),
        *at(("d64", "8k"), ("alibi_causal",), ("fa4", "flex_flash")),
        *at(("",), ("relative_bias", "alibi", "bias", "bias_learned"), EVERYTHING),
    ]


def _name(modifier, shape_name):
    return modifier if shape_name in ("", "packed") else f"{modifier}_{shape_name}"


TABLE = {_name(modifier, shape): (modifier, shape, peers) for modifier, shape, peers in _table()}


def names(options):
    """The names of all cases: those of the table, or as many as options.unseen says that options.seed draws."""
    return list(unseen.drawn(options.unseen, options.seed) if options.unseen else TABLE)


def case(name, options):
    """The case of that name, with its tensors, which other cases' memory doesn't have to hold as well."""
    if options.unseen:
        return unseen.case(name, options, MODIFIERS)
    modifier, shape_name, peers = TABLE[name]
    shape = SHAPES[shape_name].scaled(options)
    return replace(MODIFIERS[modifier](shape, options), name=name, modifier=modifier, shape_name=shape_name, shape=shape, peers=peers)
