"""A batch as vLLM describes it, and the attention calls that scoremod.torch.mixed_batches splits it into."""

import dataclasses
from typing import Any

import torch
from vllm.v1.attention.backend import AttentionCGSupport, AttentionMetadata, AttentionMetadataBuilder

from scoremod.torch.mixed_batches import Sequences, one_call, split_calls
from scoremod.torch.page_append import places_of


@dataclasses.dataclass
class ScoremodMetadata(AttentionMetadata):
    """A batch: queries one sequence after the other, and the pages that hold each sequence's keys, new ones included.

    tokens: without padding; offsets: int32 [sequences + 1]; lengths: int32 [sequences]; page_table: int32 [sequences, pages].
    """

    tokens: int
    offsets: torch.Tensor
    lengths: torch.Tensor
    page_table: torch.Tensor
    causal: bool
    calls: list[Sequences]
    _shared: dict[Any, Any] = dataclasses.field(default_factory=dict)

    def starts(self):
        """The position of each sequence's first query, int32 [sequences]."""
        return self._of_step("starts", lambda: self.lengths - self.offsets.diff())

    def places(self, pool):
        """Where the new tokens go in a pool of pages [pages, KV heads, page size, dim]."""
        made = lambda: places_of(self.page_table, self.lengths, self.offsets, self.tokens, pool)  # noqa: E731
        return self._of_step((pool.shape[0], pool.shape[2]), made)

    def _of_step(self, key, make):
        """What the layers of a step share. A capture makes it for each: replays have other lengths, and a graph reads what it computed itself."""
        if self.lengths.is_cuda and torch.cuda.is_current_stream_capturing():
            return make()
        if key not in self._shared:
            self._shared[key] = make()
        return self._shared[key]


class ScoremodMetadataBuilder(AttentionMetadataBuilder):
    # Attention runs between vLLM's graphs: whole graphs with this backend were never run.
    _cudagraph_support = AttentionCGSupport.NEVER

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._init_reorder_batch_threshold(1, supports_spec_as_decode=True)

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        if common_prefix_len:
            raise NotImplementedError("scoremod: expected no common prefix, for use_cascade_attention() is False, found one")
        # vLLM puts decode steps first, as reorder_batch_threshold asks, and has a copy of the offsets on the host.
        batch = common_attn_metadata
        return _metadata(batch, split_calls(batch.query_start_loc_cpu.diff().tolist(), *_tensors(batch), self.reorder_batch_threshold))

    def build_for_cudagraph_capture(self, common_attn_metadata):
        """One call, whatever the batch is: a graph's replays may have other counts of queries, but no longer ones."""
        batch = common_attn_metadata
        return _metadata(batch, [one_call(*_tensors(batch), batch.max_query_len)])

    def use_cascade_attention(self, *args, **kwargs):
        return False


def _metadata(batch, calls):
    if isinstance(batch.causal, torch.Tensor):
        raise NotImplementedError("scoremod: expected one answer for all sequences to whether attention is causal, found a tensor")
    return ScoremodMetadata(batch.num_actual_tokens, batch.query_start_loc, batch.seq_lens, batch.block_table_tensor, bool(batch.causal), calls)


def _tensors(batch):
    return batch.num_actual_tokens, batch.query_start_loc, batch.seq_lens, batch.block_table_tensor
