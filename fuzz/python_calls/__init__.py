"""Calls of scoremod.torch.flex_attention that bytes describe, and what holds for each of them."""
