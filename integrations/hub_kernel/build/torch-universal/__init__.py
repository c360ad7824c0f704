"""scoremod as a kernel of the Hugging Face Hub: FlashAttention's functions, for attn_implementation= of transformers. The package scoremod has to be installed."""

from scoremod.torch.flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache

__all__ = ["flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"]
