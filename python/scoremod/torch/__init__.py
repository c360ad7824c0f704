"""scoremod for PyTorch. docs/torch.md is a walk through it."""

from scoremod.torch.api import flex_attention

__all__ = ["flex_attention"]
