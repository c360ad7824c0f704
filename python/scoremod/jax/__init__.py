"""scoremod for JAX. docs/jax.md is a walk through it."""

from scoremod.jax.api import flex_attention

__all__ = ["flex_attention"]
