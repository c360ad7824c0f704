"""scoremod for JAX. docs/jax.md is a walk through it."""

from scoremod.jax import zoo
from scoremod.jax.api import flex_attention
from scoremod.jax.draw import draw
from scoremod.jax.explain import Explanation, Operand, explain, support
from scoremod.jax.ffi import BACKWARD, FORWARD, register
from scoremod.jax.fused_attention import fused_attention
from scoremod.jax.kept_results import CHECKPOINT_NAMES

__all__ = [
    "BACKWARD",
    "CHECKPOINT_NAMES",
    "FORWARD",
    "Explanation",
    "Operand",
    "draw",
    "explain",
    "flex_attention",
    "fused_attention",
    "register",
    "support",
    "zoo",
]
