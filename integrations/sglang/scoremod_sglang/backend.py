"""The class that SGLang asks for attention: what a batch is, and a layer's attention of it.

A batch is varlen queries over a paged KV cache: prompts, chunks of them and decode steps alike. SGLang's pools write the new keys and values; the page table
is each page's first slot in req_to_token, so pages may have one token or more.
"""

import dataclasses

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import KVWriteLoc

from scoremod.torch.flash_attn import flash_attn_varlen_func
from scoremod.torch.mixed_batches import Sequences, one_call, split_calls

_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_CACHE_DTYPES = (torch.float16, torch.bfloat16, torch.float32, *_FLOAT8)


@dataclasses.dataclass
class ScoremodMetadata:
    """A batch: queries one sequence after the other, and the pages that hold each sequence's keys, new ones included.

    calls: of decode steps and of prompts. tokens: the queries of all. longest: the most keys of a sequence.
    window_table, window_slots: the pages and the new slots in the pool of layers with a window, where they have one of their own.
    """

    calls: list[Sequences]
    tokens: int
    longest: int
    window_table: torch.Tensor | None = None
    window_slots: torch.Tensor | None = None


class ScoremodAttnBackend(AttentionBackend):
    def __init__(self, model_runner):
        super().__init__()
        config = model_runner.model_config
        for what, found in (
            ("a model without MLA", model_runner.use_mla_backend),
            ("a model without an encoder", config.is_encoder_decoder),
            ("a model without chunked local attention", config.is_local_attention_model),
        ):
            if found:
                raise NotImplementedError(f"scoremod: expected {what}, found one with it; choose another --attention-backend")
        if model_runner.kv_cache_dtype not in _CACHE_DTYPES:
            raise NotImplementedError(
                f"scoremod: expected a KV cache of the model's dtype, fp8_e4m3 or fp8_e5m2, found {model_runner.kv_cache_dtype}; set --kv-cache-dtype auto"
            )
        self.page_size, self.max_context_len, self.device = model_runner.page_size, config.context_len, model_runner.device
        self.req_to_token = model_runner.req_to_token_pool.req_to_token
        self.token_to_kv_pool = model_runner.token_to_kv_pool
        # Hybrid pools keep the layers with a window apart, with slots of their own.
        self._slots_of_windows = getattr(self.token_to_kv_pool, "translate_loc_from_full_to_swa", None)
        self.forward_metadata = None
        self._static = None

    def init_forward_metadata(self, forward_batch):
        batch = forward_batch
        _check_batch(batch)
        longest = self.max_context_len if batch.seq_lens_cpu is None else max([1, *batch.seq_lens_cpu.tolist()])
        if batch.forward_mode.is_decode_or_idle():
            offsets, counts = torch.arange(batch.batch_size + 1, dtype=torch.int32, device=batch.seq_lens.device), [1] * batch.batch_size
        else:
            offsets = torch.nn.functional.pad(batch.extend_seq_lens.cumsum(0, dtype=torch.int32), (1, 0))
            counts = batch.extend_seq_lens_cpu
        table, window_table = self._tables(batch.req_pool_indices, -(-longest // self.page_size))
        # SGLang appends decode steps to the prompts of a mixed batch.
        tokens = int(batch.out_cache_loc.shape[0]) if counts is None else sum(counts)
        tensors = tokens, offsets, batch.seq_lens.int(), table
        calls = [one_call(*tensors, tokens)] if counts is None else split_calls(list(counts), *tensors)
        self.forward_metadata = ScoremodMetadata(calls, tokens, longest, window_table, self._window_slots(batch.out_cache_loc))

    def init_cuda_graph_state(self, max_bs, max_num_tokens):
        """The tensors that graphs read: batches of decode steps write theirs into them."""
        pages = -(-self.max_context_len // self.page_size)
        empty = lambda *shape, dtype=torch.int32: torch.zeros(shape, dtype=dtype, device=self.device)  # noqa: E731
        has_windows = self._slots_of_windows is not None
        self._static = ScoremodMetadata(
            [one_call(max_num_tokens, torch.arange(max_bs + 1, dtype=torch.int32, device=self.device), empty(max_bs), empty(max_bs, pages), 1)],
            max_num_tokens,
            self.max_context_len,
            empty(max_bs, pages) if has_windows else None,
            empty(max_num_tokens, dtype=torch.int64) if has_windows else None,
        )

    def init_forward_metadata_out_graph(self, forward_batch, in_capture=False):
        batch, static = forward_batch, self._static
        _check_batch(batch)
        if not batch.forward_mode.is_decode_or_idle() or static is None:
            raise NotImplementedError(
                f"scoremod: expected a graph of decode steps after init_cuda_graph_state(), found {batch.forward_mode}; prompts run without graphs"
            )
        (call,), count = static.calls, batch.batch_size
        table, window_table = self._tables(batch.req_pool_indices[:count], call.page_table.shape[1])
        lengths, own_table = call.lengths[:count], call.page_table[:count]
        lengths.copy_(batch.seq_lens[:count])
        own_table.copy_(table)
        own = ScoremodMetadata([one_call(count, call.offsets[: count + 1], lengths, own_table, 1)], count, static.longest)
        if window_table is not None:
            own.window_table = static.window_table[:count].copy_(window_table)
        slots = self._window_slots(batch.out_cache_loc)
        if slots is not None:
            own.window_slots = static.window_slots[: len(slots)].copy_(slots)
        self.forward_metadata = own

    def get_cuda_graph_seq_len_fill_value(self):
        return 1

    def forward_extend(self, q, k, v, layer, forward_batch, save_kv_cache=True, sinks=None, **others):
        return self._forward(q, k, v, layer, forward_batch, save_kv_cache, sinks, others)

    def forward_decode(self, q, k, v, layer, forward_batch, save_kv_cache=True, sinks=None, **others):
        return self._forward(q, k, v, layer, forward_batch, save_kv_cache, sinks, others)

    def _forward(self, q, k, v, layer, forward_batch, save_kv_cache, sinks, others):
        """Attention of the batch's tokens, [tokens, heads * dim]."""
        _check_layer(layer, others)
        batch, pool = self.forward_metadata, self.token_to_kv_pool
        if save_kv_cache and k is not None:
            pool.set_kv_buffer(layer, KVWriteLoc.for_batch(forward_batch, swa_loc=batch.window_slots), k, v, layer.k_scale, layer.v_scale)
        pages = [self._pages(buffer) for buffer in (pool.get_key_buffer(layer.layer_id), pool.get_value_buffer(layer.layer_id))]
        q = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        o = q.new_empty((*q.shape[:2], layer.v_head_dim))
        o[batch.tokens :] = 0  # padding behind the last sequence
        with torch.no_grad():
            for call in batch.calls:
                self._attend(call, q[call.tokens], pages, o[call.tokens], layer, sinks)
        return o.reshape(-1, layer.tp_q_head_num * layer.v_head_dim)

    def _attend(self, call, q, pages, o, layer, sinks):
        """Attention of some sequences' queries into their rows of the output."""
        batch = self.forward_metadata
        # SGLang's window leaves the query's own key out of its count, as FlashAttention's does.
        left = layer.sliding_window_size if layer.sliding_window_size is not None and layer.sliding_window_size > -1 else None
        is_causal = layer.attn_type == AttentionType.DECODER
        scales = {}
        if pages[0].dtype in _FLOAT8:  # SGLang's pools divide by the layer's, where it has them
            scales = {f"{name}_descale": 1.0 if scale is None else scale for name, scale in (("k", layer.k_scale), ("v", layer.v_scale))}
        flash_attn_varlen_func(
            q,
            *pages,
            call.offsets,
            max_seqlen_q=call.most,
            max_seqlen_k=batch.longest,
            softmax_scale=layer.scaling,
            causal=is_causal,
            window_size=(left, None if is_causal else left),
            softcap=layer.logit_cap or 0.0,
            block_table=call.page_table if left is None or batch.window_table is None else batch.window_table[call.numbers],
            seqused_k=call.lengths,
            s_aux=sinks,
            out=o,
            **scales,
        )

    def _pages(self, buffer):
        """A pool's slots [slots, KV heads, dim] as [pages, page size, KV heads, dim]; slots behind the last whole page are in no table."""
        pages = buffer.shape[0] // self.page_size
        return buffer[: pages * self.page_size].view(pages, self.page_size, *buffer.shape[1:])

    def _tables(self, requests, pages):
        """(page table of the pool, that of layers with a window or None)."""
        slots = self.req_to_token[requests, : pages * self.page_size : self.page_size]
        window = None if self._slots_of_windows is None else self._slots_of_windows(slots)
        return [None if each is None else (each // self.page_size).int() for each in (slots, window)]

    def _window_slots(self, slots):
        return None if self._slots_of_windows is None or slots is None else self._slots_of_windows(slots)


def _check_batch(batch):
    if batch.spec_info is not None or batch.forward_mode.is_target_verify() or batch.forward_mode.is_draft_extend_v2():
        raise NotImplementedError("scoremod: expected a batch without speculative decoding, found one with it; leave --speculative-algorithm out")
    if batch.encoder_lens is not None:
        raise NotImplementedError("scoremod: expected a batch without an encoder, found encoder_lens")


def _check_layer(layer, others):
    given = [name for name, each in others.items() if each is not None and each is not False]
    if given:
        raise NotImplementedError(f"scoremod: expected no arguments of a layer but sinks, found {', '.join(given)}")
    if layer.is_cross_attention or layer.attn_type not in (AttentionType.DECODER, AttentionType.ENCODER_ONLY):
        raise NotImplementedError(f"scoremod: expected self-attention of a decoder or an encoder, found {layer.attn_type} in layer {layer.layer_id}")
    if layer.logit_cap and layer.logit_capping_method != "tanh":
        raise NotImplementedError(f"scoremod: expected a soft cap by tanh, found {layer.logit_capping_method}")
    if layer.pos_encoding_mode != "NONE" or layer.xai_temperature_len > 0:
        raise NotImplementedError(f"scoremod: expected a layer without an encoding of positions or a temperature, found one in layer {layer.layer_id}")
