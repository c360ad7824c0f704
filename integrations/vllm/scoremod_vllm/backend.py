"""The classes that vLLM asks an attention backend for: what it can do, what a batch is, and a layer's attention.

A batch is varlen queries over a paged KV cache, prefill and decode steps alike. A layer writes its new keys and values into the pages
(append_to_pages), and then attends to what each sequence has (flash_attn_varlen_func).
"""

import dataclasses
from typing import ClassVar

import torch
from vllm.v1.attention.backend import AttentionBackend, AttentionCGSupport, AttentionImpl, AttentionMetadata, AttentionMetadataBuilder, AttentionType

from scoremod.torch import append_to_pages
from scoremod.torch.flash_attn import flash_attn_varlen_func

_MOST_DIM, _DIM_STEP = 256, 8
_LEAST_CAPABILITY = 80


class ScoremodBackend(AttentionBackend):
    supported_dtypes: ClassVar = [torch.float16, torch.bfloat16, torch.float32]
    # Pages of eight bits under queries of sixteen are refused by scoremod.
    supported_kv_cache_dtypes: ClassVar = ["auto", "float16", "bfloat16"]
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
            return f"scoremod: expected a KV cache of the model's dtype, {dtype}, found {kv_cache_dtype}; set --kv-cache-dtype auto"
        return None


@dataclasses.dataclass
class ScoremodMetadata(AttentionMetadata):
    """A batch: queries one sequence after the other, and the pages that hold each sequence's keys, new ones included.

    offsets: int32 [sequences + 1]; lengths: int32 [sequences]; page_table: int32 [sequences, pages]. tokens: without padding. most: the most queries
    and keys of a sequence.
    """

    tokens: int
    offsets: torch.Tensor
    lengths: torch.Tensor
    page_table: torch.Tensor
    most: tuple[int, int]
    causal: bool


class ScoremodMetadataBuilder(AttentionMetadataBuilder):
    # Attention runs between vLLM's graphs: whole graphs with this backend were never run.
    _cudagraph_support = AttentionCGSupport.NEVER

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        batch = common_attn_metadata
        if common_prefix_len:
            raise NotImplementedError("scoremod: expected no common prefix, for use_cascade_attention() is False, found one")
        if isinstance(batch.causal, torch.Tensor):
            raise NotImplementedError("scoremod: expected one answer for all sequences to whether attention is causal, found a tensor")
        most = batch.max_query_len, batch.max_seq_len
        return ScoremodMetadata(
            batch.num_actual_tokens, batch.query_start_loc, batch.seq_lens, batch.block_table_tensor, most, bool(batch.causal)
        )  # fmt: skip

    def use_cascade_attention(self, *args, **kwargs):
        return False


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
        k_pages, v_pages = kv_cache.unbind(1)
        if self._writes and key is not None:
            new = key[: batch.tokens], value[: batch.tokens]
            append_to_pages(k_pages.transpose(1, 2), v_pages.transpose(1, 2), *new, batch.page_table, batch.lengths, batch.offsets)
        if self._slopes is not None and self._slopes.device != query.device:
            self._slopes = self._slopes.to(query.device)
        with torch.no_grad():
            flash_attn_varlen_func(
                query,
                k_pages,
                v_pages,
                batch.offsets,
                max_seqlen_q=batch.most[0],
                max_seqlen_k=batch.most[1],
                softmax_scale=self.scale,
                causal=batch.causal,
                window_size=(self._left, None),
                softcap=self._cap,
                alibi_slopes=self._slopes,
                block_table=batch.page_table,
                seqused_k=batch.lengths,
                s_aux=self.sinks,
                out=rows,
            )
        return output
