"""Stand-ins of the SGLang classes under its attention backend, and an engine whose steps are drawn.

The stand-ins have the signatures of sglang 0.5.23. Pools give slots, a request's slots stand in req_to_token, and pages lie in any order.
"""

import contextlib
import dataclasses
import enum
import importlib
import math
import sys
import types
from pathlib import Path
from typing import Any

import torch
from served_requests import SCALE, Layer, Request

FOLDER = Path(__file__).resolve().parents[2] / "integrations" / "sglang"


class AttentionType(enum.Enum):
    DECODER = "decoder"
    DECODER_BIDIRECTIONAL = "decoder_bidirectional"
    ENCODER_ONLY = "encoder_only"


class ForwardMode(enum.IntEnum):
    EXTEND = enum.auto()
    DECODE = enum.auto()
    MIXED = enum.auto()
    IDLE = enum.auto()
    TARGET_VERIFY = enum.auto()

    def is_decode(self):
        return self == ForwardMode.DECODE

    def is_idle(self):
        return self == ForwardMode.IDLE

    def is_decode_or_idle(self):
        return self in (ForwardMode.DECODE, ForwardMode.IDLE)

    def is_target_verify(self):
        return self == ForwardMode.TARGET_VERIFY

    def is_draft_extend_v2(self):
        return False


@dataclasses.dataclass
class ForwardBatch:
    """The part of SGLang's that the backend reads."""

    forward_mode: ForwardMode
    batch_size: int
    req_pool_indices: torch.Tensor
    seq_lens: torch.Tensor
    out_cache_loc: torch.Tensor
    seq_lens_cpu: torch.Tensor | None = None
    extend_seq_lens: torch.Tensor | None = None
    extend_seq_lens_cpu: list[int] | None = None
    out_cache_loc_is_physical: bool = False
    encoder_lens: torch.Tensor | None = None
    spec_info: Any = None


@dataclasses.dataclass
class KVWriteLoc:
    loc: torch.Tensor
    swa_loc: torch.Tensor | None = None
    full_loc: torch.Tensor | None = None
    physical: bool = False

    @classmethod
    def for_batch(cls, forward_batch, *, swa_loc=None, full_loc=None):
        return cls(forward_batch.out_cache_loc, swa_loc, full_loc, forward_batch.out_cache_loc_is_physical)


class AttentionBackend:
    def init_forward_metadata(self, forward_batch):
        self.init_forward_metadata_out_graph(forward_batch)
        self.init_forward_metadata_in_graph(forward_batch)

    def init_forward_metadata_out_graph(self, forward_batch, in_capture=False):
        pass

    def init_forward_metadata_in_graph(self, forward_batch):
        pass

    def init_cuda_graph_state(self, max_bs, max_num_tokens):
        raise NotImplementedError

    def get_cuda_graph_seq_len_fill_value(self):
        raise NotImplementedError

    def forward(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs):
        if forward_batch.forward_mode.is_idle():
            return q.new_empty(q.shape[0], layer.tp_q_head_num * layer.v_head_dim)
        run = self.forward_decode if forward_batch.forward_mode.is_decode() else self.forward_extend
        return run(q, k, v, layer, forward_batch, save_kv_cache=save_kv_cache, **kwargs)

    def forward_decode(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs):
        raise NotImplementedError

    def forward_extend(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs):
        raise NotImplementedError


class KVPool:
    """Slots of one layer's keys and values, page 0 for what is padded, and some behind the last whole page."""

    def __init__(self, pages, layer, device, dtype):
        shape = pages * layer.page + layer.page // 2, layer.heads_kv, layer.dim
        self.buffers = [torch.full(shape, math.nan, device=device, dtype=dtype) for _ in range(2)]

    def get_key_buffer(self, layer_id):
        return self.buffers[0]

    def get_value_buffer(self, layer_id):
        return self.buffers[1]

    def set_kv_buffer(self, layer, loc_info, cache_k, cache_v, k_scale=None, v_scale=None):
        for buffer, new, scale in zip(self.buffers, (cache_k, cache_v), (k_scale, v_scale)):
            new = new if buffer.dtype == new.dtype or scale is None else new / scale
            buffer[self.slots_of(loc_info)] = new[: len(loc_info.loc)].to(buffer.dtype)

    def slots_of(self, loc_info):
        return loc_info.loc


class SWAKVPool(KVPool):
    """A pool of a layer with a window, whose slots are others than those of req_to_token."""

    def __init__(self, pages, layer, device, dtype, random):
        super().__init__(pages, layer, device, dtype)
        first = torch.randperm(pages, generator=random) * layer.page
        self.mapping = (first[:, None] + torch.arange(layer.page)).flatten().to(device)

    def translate_loc_from_full_to_swa(self, kv_indices):
        return self.mapping[kv_indices.long()]

    def slots_of(self, loc_info):
        return loc_info.swa_loc


# Modules of SGLang, and the names that the backend takes from them.
MODULES = {
    "sglang.srt.layers.attention.base_attn_backend": (AttentionBackend,),
    "sglang.srt.layers.radix_attention": (AttentionType,),
    "sglang.srt.mem_cache.memory_pool": (KVWriteLoc,),
}


@contextlib.contextmanager
def plugin():
    """The function of a model runner that the plugin registers, over the stand-ins."""
    registered, choices = {}, []
    modules = {name: types.SimpleNamespace(**{each.__name__: each for each in classes}) for name, classes in MODULES.items()}
    register = lambda name: lambda function: registered.setdefault(name, function)  # noqa: E731
    modules["sglang.srt.layers.attention.attention_registry"] = types.SimpleNamespace(register_attention_backend=register)
    modules["sglang.srt.server_args"] = types.SimpleNamespace(add_attention_backend_choices=choices.extend)
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    sys.path.insert(0, str(FOLDER))
    try:
        importlib.import_module("scoremod_sglang").register()
        assert choices == list(registered) == ["scoremod"]
        yield registered["scoremod"]
    finally:
        sys.path.remove(str(FOLDER))
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
        for name in [each for each in sys.modules if each.startswith("scoremod_sglang")]:
            del sys.modules[name]


def runner_of(layer, pool, requests, longest, device="cpu", **changed):
    """A model runner with the fields that the backend reads."""
    config = types.SimpleNamespace(context_len=longest, is_encoder_decoder=False, is_local_attention_model=False)
    req_to_token = torch.zeros(requests, longest, dtype=torch.int32, device=device)
    fields = dict(
        model_config=config, use_mla_backend=False, kv_cache_dtype=torch.float32, page_size=layer.page, device=device,
        req_to_token_pool=types.SimpleNamespace(req_to_token=req_to_token), token_to_kv_pool=pool,
    )  # fmt: skip
    return types.SimpleNamespace(**fields | changed)


def radix_attention(layer, **changed):
    """A layer with the fields that the backend reads. Windows of SGLang leave out the query's own key."""
    window = layer.options["sliding_window"]
    fields = dict(
        tp_q_head_num=layer.heads, tp_k_head_num=layer.heads_kv, tp_v_head_num=layer.heads_kv, qk_head_dim=layer.dim, v_head_dim=layer.dim, scaling=SCALE,
        layer_id=0, logit_cap=layer.options["logits_soft_cap"] or 0.0, logit_capping_method="tanh", sliding_window_size=-1 if window is None else window - 1,
        is_cross_attention=False, attn_type=AttentionType.DECODER, pos_encoding_mode="NONE", xai_temperature_len=-1, k_scale=None, v_scale=None,
    )  # fmt: skip
    return types.SimpleNamespace(**fields | changed)


class Engine:
    """Requests in slots of one pool, whose steps give each a chunk of its tokens or all of them one token."""

    def __init__(self, create, choose, random, *, device="cpu", dtype=torch.float32, tokens=25, dims=(8, 16), cache_dtype=None, scales=(None, None)):
        """scales: of keys and values in an FP8 cache, as SGLang's layer has them."""
        self.choose, self.device, self.dtype, cache_dtype = choose, device, dtype, cache_dtype or dtype
        self.scales = {f"{name}_scale": None if scale is None else torch.tensor(scale, device=device) for name, scale in zip("kv", scales)}
        self.layer = layer = Layer.drawn(choose, random, dims)
        layer.options["alibi_slopes"] = None
        counts = [choose.randint(1, tokens) for _ in range(choose.randint(1, 4))]
        widths = [-(-each // layer.page) for each in counts]
        pages = sum(widths) + 4
        # Page 0 is no request's.
        ids = [1 + each for each in choose.sample(range(pages - 1), sum(widths))]
        self.requests = [Request(count, [ids.pop() for _ in range(width)], layer, random, device, dtype) for count, width in zip(counts, widths)]
        self.longest = max(counts) + choose.choice([0, 7])
        has_own_pool = layer.options["sliding_window"] is not None and choose.random() < 0.7
        self.pool = SWAKVPool(pages, layer, device, cache_dtype, random) if has_own_pool else KVPool(pages, layer, device, cache_dtype)
        self.rows = choose.sample(range(1, 9), len(counts))
        runner = runner_of(layer, self.pool, 9, self.longest, device, kv_cache_dtype=cache_dtype)
        for row, request in zip(self.rows, self.requests):
            slots = torch.tensor(request.pages).repeat_interleave(layer.page) * layer.page + torch.arange(len(request.pages) * layer.page) % layer.page
            runner.req_to_token_pool.req_to_token[row, : len(request.q)] = slots[: len(request.q)].int().to(device)
        self.req_to_token = runner.req_to_token_pool.req_to_token
        self.backend = create(runner)
        sinks = layer.options["sinks"]
        self.options = {} if sinks is None else {"sinks": sinks.to(device)}

    def is_done(self):
        return all(each.done == len(each.q) for each in self.requests)

    def batch(self, taken, counts, has_host_lengths):
        """(ForwardBatch, the tokens' q, k and v) of requests that bring so many tokens each."""
        ends = [each.done + count for each, count in zip(taken, counts)]
        rows = [self.rows[self.requests.index(each)] for each in taken]
        slots = torch.cat([self.req_to_token[row, each.done : end] for row, each, end in zip(rows, taken, ends)]).long()
        lengths = torch.tensor(ends)
        is_decode = all(count == 1 for count in counts) and self.choose.random() < 0.7
        forward = ForwardBatch(
            ForwardMode.DECODE if is_decode else self.choose.choice([ForwardMode.EXTEND, ForwardMode.MIXED]), len(taken),
            torch.tensor(rows, device=self.device), lengths.to(self.device), slots, lengths if has_host_lengths else None,
        )  # fmt: skip
        if not is_decode:
            forward.extend_seq_lens = torch.tensor(counts, dtype=torch.int32, device=self.device)
            forward.extend_seq_lens_cpu = counts if has_host_lengths else None
        return forward, [torch.cat([getattr(each, name)[each.done : end] for each, end in zip(taken, ends)]) for name in "qkv"]

    def step(self):
        """[(request, its first token, behind its last one, the output)] of a step of those that have tokens left."""
        choose, layer = self.choose, self.layer
        taken = [each for each in self.requests if each.done < len(each.q) and choose.random() < 0.8]
        if not taken:
            return []
        is_decode = choose.random() < 0.5 and all(each.done for each in taken)
        counts = [1 if is_decode else choose.randint(1, min(9, len(each.q) - each.done)) for each in taken]
        forward, (q, k, v) = self.batch(taken, counts, choose.random() < 0.7)
        self.backend.init_forward_metadata(forward)
        o = self.backend.forward(q.flatten(1), k, v, radix_attention(layer, **self.scales), forward, **self.options)
        found = []
        for each, count, rows in zip(taken, counts, o.view(-1, layer.heads, layer.dim).split(counts)):
            found.append((each, each.done, each.done + count, rows))
            each.done += count
        return found
