"""scoremod for PyTorch. docs/torch.md is a walk through it."""

from scoremod.explanation import Explanation, Operand
from scoremod.torch.api import flex_attention
from scoremod.torch.context_parallel import context_parallel_attention
from scoremod.torch.explain import draw, explain, support
from scoremod.torch.stripes import stripe, unstripe

__all__ = [
    "Explanation",
    "Operand",
    "context_parallel_attention",
    "draw",
    "explain",
    "flex_attention",
    "stripe",
    "support",
    "unstripe",
]
