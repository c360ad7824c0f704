"""scoremod for JAX. `python -m scoremod docs jax` prints a walk through it."""

from scoremod.jax import zoo
from scoremod.jax.api import flex_attention
from scoremod.jax.dot_product import dot_product_attention
from scoremod.jax.draw import draw
from scoremod.jax.explain import Explanation, Operand, explain, support
from scoremod.jax.fallbacks import fallback_counts
from scoremod.jax.ffi import BACKWARD, CUSTOM_CALLS, FORWARD, register
from scoremod.jax.fused_attention import fused_attention
from scoremod.jax.fused_attn import fused_attn
from scoremod.jax.kept_results import CHECKPOINT_NAMES
from scoremod.jax.merged import merge
from scoremod.jax.named_masks import SequenceDescriptor
from scoremod.jax.page_append import append_to_pages
from scoremod.jax.trees import at_tree_depths, tree_depths, tree_mask

__all__ = [
    "BACKWARD",
    "CHECKPOINT_NAMES",
    "CUSTOM_CALLS",
    "FORWARD",
    "Explanation",
    "Operand",
    "SequenceDescriptor",
    "append_to_pages",
    "at_tree_depths",
    "dot_product_attention",
    "draw",
    "explain",
    "fallback_counts",
    "flex_attention",
    "fused_attention",
    "fused_attn",
    "merge",
    "register",
    "support",
    "tree_depths",
    "tree_mask",
    "zoo",
]

# Modules for users beside these, each imported by itself.
_MODULES = ("context_parallel", "graph", "linen", "nnx", "transformer_engine", "transformer_layer")


def __dir__():
    return sorted([*__all__, *(name for name in globals() if name in _MODULES or name.startswith("__"))])
