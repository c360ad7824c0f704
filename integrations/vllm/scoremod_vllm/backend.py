"""The classes that vLLM asks an attention backend for: what it can do, what a batch is, and a layer's attention.

A batch is varlen queries over a paged KV cache. A layer writes its new keys and values into the pages, and then attends to what each
sequence has, in the calls that batches.py splits the batch into.
"""

from typing import ClassVar

import torch
from vllm.v1.attention.backend import AttentionBackend, AttentionImpl, AttentionType

from scoremod.torch import flex_attention
from scoremod.torch.page_append import fitting
from scoremod_vllm.batches import ScoremodMetadataBuilder

_MOST_DIM, _DIM_STEP = 256, 8
_LEAST_CAPABILITY = 80
# vLLM keeps pages of such a --kv-cache-dtype as bytes.
_FLOAT8 = {"fp8": torch.float8_e4m3fn, "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}


class ScoremodBackend(AttentionBackend):
    supported_dtypes: ClassVar = [torch.float16, torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes: ClassVar = ["auto", "float16", "bfloat16", *_FLOAT8]
    forward_includes_kv_cache_update = True

    @staticmethod
    def get_name():
        return "CUSTOM"

    @staticmethod
    def get_impl_cls():
        return ScoremodImpl

    @staticmethod
    def get_builder_cls():
        return ScoremodMetadataBuilder

    @staticmethod
    def get_kv_cache_shape(num_blocks, block_size, num_kv_heads, head_size, cache_dtype_str="auto"):
        """[pages, keys and values, page size, KV heads, dim]"""
        return num_blocks, 2, block_size, num_kv_heads, head_size

    @classmethod
    def supports_head_size(cls, head_size):
        return head_size % _DIM_STEP == 0 and 0 < head_size <= _MOST_DIM

    @classmethod
    def supports_sink(cls):
        return True

    @classmethod
    def supports_non_causal(cls):
        return True

    @classmethod
    def supports_attn_type(cls, attn_type):
        return attn_type == AttentionType.DECODER

    @classmethod
    def supports_compute_capability(cls, capability):
        return capability.to_int() >= _LEAST_CAPABILITY

    @classmethod
    def supports_combination(cls, head_size, dtype, kv_cache_dtype, *_):
        """What vLLM's own words leave open: what was expected, and what was found."""
        if not cls.supports_head_size(head_size):
            return f"scoremod: expected a head size that is a multiple of {_DIM_STEP} up to {_MOST_DIM}, found {head_size}"
        if not cls.supports_kv_cache_dtype(kv_cache_dtype):
            return f"scoremod: expected a KV cache of the model's dtype, {dtype}, or of {', '.join(_FLOAT8)}, found {kv_cache_dtype}; set --kv-cache-dtype auto"
        return None


class ScoremodImpl(AttentionImpl):
    def __init__(
        self,
        num_heads,
        head_size,
        scale,
        num_kv_heads=None,
        alibi_slopes=None,
        sliding_window=None,
        kv_cache_dtype="auto",
        logits_soft_cap=None,
        attn_type=AttentionType.DECODER,
        kv_sharing_target_layer_name=None,
        sinks=None,
    ):
        if attn_type != AttentionType.DECODER:
            raise NotImplementedError(f"scoremod: expected attention of a decoder, found {attn_type}")
        if sinks is not None and sinks.shape != (num_heads,):
            raise ValueError(f"scoremod: expected sinks of shape ({num_heads},), one for each head, found {tuple(sinks.shape)}")
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.kv_cache_dtype, self.attn_type = kv_cache_dtype, attn_type
        self._float8 = _FLOAT8.get(kv_cache_dtype)
        self._slopes = None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32)
        # A window has its query's own key, and vLLM counts it.
        self._left = None if sliding_window is None else sliding_window - 1
        self._cap, self.sinks = logits_soft_cap or 0.0, sinks
        self._writes = kv_sharing_target_layer_name is None

    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output, output_scale=None, output_block_scale=None):
        """Attention of a batch's tokens, [tokens, heads, dim], into output; what is beyond the batch's tokens is padding, and stays as it is."""
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("scoremod: expected an output of the query's dtype, found a scale of another; fused quantization is not supported")
        if attn_metadata is None:  # vLLM measures memory
            return output.fill_(0)
        batch = attn_metadata
        query, rows = query[: batch.tokens], output.view(-1, self.num_heads, self.head_size)[: batch.tokens]
        cache = kv_cache if self._float8 is None else kv_cache.view(self._float8)
        k_pages, v_pages = (each.transpose(1, 2) for each in cache.unbind(1))
        # In device memory, where they stay: a copy to the host would wait, and no graph could capture it.
        scales = {} if self._float8 is None else {"descale_k": layer._k_scale, "descale_v": layer._v_scale}
        if self._writes and key is not None and batch.tokens:
            new = fitting(k_pages, v_pages, key[: batch.tokens], value[: batch.tokens], 3, **scales)
            batch.places(k_pages).write(*new)
        if self._slopes is not None and self._slopes.device != query.device:
            self._slopes = self._slopes.to(query.device)
        with torch.no_grad():
            for sequences in batch.calls:
                self._attend(sequences, query, k_pages, v_pages, scales, batch, rows)
        return output

    def _attend(self, sequences, query, k_pages, v_pages, scales, batch, rows):
        """Attention of some sequences' queries into their rows of the output."""
        places: dict = {}
        query, rows = query[sequences.tokens], rows[sequences.tokens]
        if sequences.count is None:
            places = {"q_offsets": sequences.offsets, "max_length": sequences.most}
        else:  # [sequences, heads, queries, dim], whose other sizes make nothing anew
            query, rows = (each.view(-1, sequences.count, *each.shape[1:]).transpose(1, 2) for each in (query, rows))
        score_mod, mask_mod = self._functions(batch.starts()[sequences.numbers], batch.causal)
        flex_attention(
            query,
            k_pages,
            v_pages,
            score_mod,
            mask_mod=mask_mod,
            scale=self.scale,
            enable_gqa=True,
            lengths=sequences.lengths,
            page_table=sequences.page_table,
            sink=self.sinks,
            out=rows,
            **places,
            **scales,
        )

    def _functions(self, starts, is_causal):
        """(score_mod, mask_mod), either of which may be None. starts: the position of each sequence's first query.

        They read it themselves, where q_start="bottom_right" would compute it for each layer.
        """
        cap, slopes, left = self._cap, self._slopes, self._left

        def score_mod(score, b, h, q_idx, kv_idx):
            if cap:
                score = cap * torch.tanh(score / cap)
            if slopes is not None:
                score = score - slopes[h] * (q_idx + starts[b] - kv_idx).abs()
            return score

        def mask_mod(b, h, q_idx, kv_idx):
            q_idx = q_idx + starts[b]
            if left is None:
                return q_idx >= kv_idx
            return (q_idx >= kv_idx) & (q_idx - kv_idx <= left) if is_causal else q_idx - kv_idx <= left

        return score_mod if cap or slopes is not None else None, mask_mod if is_causal or left is not None else None
