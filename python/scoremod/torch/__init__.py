"""scoremod for PyTorch. `python -m scoremod docs torch` prints a walk through it."""

# Scripts import these beside flex_attention; they are PyTorch's own, so that one changed import serves a script.
from torch.nn.attention.flex_attention import (
    AuxOutput,
    AuxRequest,
    BlockMask,
    FlexKernelOptions,
    and_masks,
    create_block_mask,
    create_mask,
    noop_mask,
    or_masks,
)

from scoremod.explanation import Explanation, Operand
from scoremod.torch.api import flex_attention
from scoremod.torch.context_parallel import context_parallel_attention
from scoremod.torch.explain import draw, explain, support
from scoremod.torch.fallbacks import fallback_counts
from scoremod.torch.flash_registration import register
from scoremod.torch.fused_attention import fused_attention
from scoremod.torch.merged import merge
from scoremod.torch.page_append import append_to_pages
from scoremod.torch.stripes import stripe, unstripe
from scoremod.torch.trees import at_tree_depths, tree_depths, tree_mask

__all__ = [
    "AuxOutput",
    "AuxRequest",
    "BlockMask",
    "Explanation",
    "FlexKernelOptions",
    "Operand",
    "and_masks",
    "append_to_pages",
    "at_tree_depths",
    "context_parallel_attention",
    "create_block_mask",
    "create_mask",
    "draw",
    "explain",
    "fallback_counts",
    "flex_attention",
    "fused_attention",
    "merge",
    "noop_mask",
    "or_masks",
    "register",
    "stripe",
    "support",
    "tree_depths",
    "tree_mask",
    "unstripe",
]

# Modules for users beside these, each imported by itself.
_MODULES = ("flash_attn", "transformers")


def __dir__():
    return sorted([*__all__, *(name for name in globals() if name in _MODULES or name.startswith("__"))])
