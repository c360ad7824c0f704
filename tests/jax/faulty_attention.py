"""Attentions that are wrong in one thing, for negative controls; each returns (o, lse)."""

import jax

from scoremod.jax import flex_attention


def fused(*x, **options):
    """The right one."""
    return flex_attention(*x, return_lse=True, **options)


def without_score_mod(q, k, v, score_mod, mask_mod):
    return fused(q, k, v, None, mask_mod)


def with_identity_backward(q, k, v, score_mod, mask_mod):
    """The forward with the modifier, the gradients without it."""
    right, wrong = fused(q, k, v, score_mod, mask_mod), fused(q, k, v, None, mask_mod)
    return jax.tree.map(lambda x, y: y + jax.lax.stop_gradient(x - y), right, wrong)
