"""scoremod for JAX. docs/jax.md is a walk through it."""

from scoremod.jax.api import flex_attention
from scoremod.jax.explain import Explanation, Operand, explain, support

__all__ = ["Explanation", "Operand", "explain", "flex_attention", "support"]
