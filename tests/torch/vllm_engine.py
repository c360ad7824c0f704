"""Stand-ins of the vLLM classes under its backend, and an engine whose steps are drawn.

The stand-ins have the signatures of vLLM's commit 0014ca6b.
"""

import contextlib
import dataclasses
import enum
import importlib
import itertools
import math
import sys
import types
from pathlib import Path

import torch
from served_requests import SCALE, Layer, Request

FOLDER = Path(__file__).resolve().parents[2] / "integrations" / "vllm"


class AttentionType(enum.StrEnum):
    DECODER = "decoder"
    ENCODER = "encoder"


class AttentionCGSupport(enum.Enum):
    ALWAYS = 3
    NEVER = 0


class AttentionMetadata:
    pass


class AttentionBackend:
    """The part of vLLM's that a configuration is asked through."""

    @classmethod
    def supports_kv_cache_dtype(cls, kv_cache_dtype):
        return kv_cache_dtype is None or kv_cache_dtype in cls.supported_kv_cache_dtypes

    @classmethod
    def supports_combination(cls, head_size, dtype, kv_cache_dtype, block_size, use_mla, has_sink, use_sparse, use_mm_prefix, device_capability):
        return None


class AttentionMetadataBuilder:
    reorder_batch_threshold = None

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        self.vllm_config, self.device = vllm_config, device

    def _init_reorder_batch_threshold(self, reorder_batch_threshold=1, supports_spec_as_decode=False):
        """A decode step has one query, or one more than there are speculative tokens."""
        config = self.vllm_config and self.vllm_config.speculative_config
        self.reorder_batch_threshold = reorder_batch_threshold + (config.num_speculative_tokens if config and supports_spec_as_decode else 0)

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        raise NotImplementedError

    def build_for_cudagraph_capture(self, common_attn_metadata):
        return self.build(0, common_attn_metadata)


class AttentionImpl:
    def __init__(
        self, num_heads, head_size, scale, num_kv_heads=None, alibi_slopes=None, sliding_window=None, kv_cache_dtype="auto", logits_soft_cap=None,
        attn_type=AttentionType.DECODER, kv_sharing_target_layer_name=None,
    ):  # fmt: skip
        raise NotImplementedError

    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output, output_scale=None, output_block_scale=None):
        raise NotImplementedError


STAND_INS = (AttentionBackend, AttentionCGSupport, AttentionImpl, AttentionMetadata, AttentionMetadataBuilder, AttentionType)


@dataclasses.dataclass
class CommonAttentionMetadata:
    query_start_loc: torch.Tensor
    query_start_loc_cpu: torch.Tensor
    seq_lens: torch.Tensor
    num_reqs: int
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    block_table_tensor: torch.Tensor
    causal: bool | torch.Tensor = True


@contextlib.contextmanager
def plugin():
    """The backend class that the plugin registers, over the stand-ins."""
    registered = {}
    registry = types.SimpleNamespace(AttentionBackendEnum=types.SimpleNamespace(CUSTOM="CUSTOM"), register_backend=registered.__setitem__)
    backend = types.SimpleNamespace(**{each.__name__: each for each in STAND_INS})
    modules = {"vllm.v1.attention.backend": backend, "vllm.v1.attention.backends.registry": registry}
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    sys.path.insert(0, str(FOLDER))
    try:
        importlib.import_module("scoremod_vllm").register()
        module, name = registered["CUSTOM"].rsplit(".", 1)
        yield getattr(importlib.import_module(module), name)
    finally:
        sys.path.remove(str(FOLDER))
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
        for name in [each for each in sys.modules if each.startswith("scoremod_vllm")]:
            del sys.modules[name]


def implementation(layer, backend, device="cpu", kv_cache_dtype="auto"):
    """vLLM's implementation of a layer."""
    sinks = layer.options["sinks"]
    options = {**layer.options, "sinks": None if sinks is None else sinks.to(device)}
    return backend.get_impl_cls()(layer.heads, layer.dim, SCALE, layer.heads_kv, kv_cache_dtype=kv_cache_dtype, **options)


def builder(backend, device="cpu", speculative=0):
    """The plugin's metadata builder, for a model with so many speculative tokens."""
    config = types.SimpleNamespace(speculative_config=types.SimpleNamespace(num_speculative_tokens=speculative) if speculative else None)
    return backend.get_builder_cls()(None, ["layer"], config, device)


def described(counts, lengths, table, *, padding=0, causal=True, device="cpu"):
    """vLLM's description of a batch whose sequences have these counts of queries and lengths; padding: tokens that it counts behind the last sequence."""
    offsets = torch.tensor([0, *itertools.accumulate(counts)], dtype=torch.int32)
    lengths = torch.tensor(lengths, dtype=torch.int32)
    on_device = offsets.to(device), offsets, lengths.to(device)
    return CommonAttentionMetadata(*on_device, len(counts), sum(counts) + padding, max(counts), int(lengths.max()), table.to(device), causal)


class Engine:
    """Requests with pages of their own in one cache, whose steps give each a chunk of its tokens, in a batch with padding behind."""

    def __init__(
        self,
        backend,
        choose,
        random,
        *,
        causal=True,
        device="cpu",
        dtype=torch.float32,
        tokens=25,
        dims=(8, 16),
        requests=4,
        speculative=0,
        kv_cache_dtype="auto",
        scales=None,
    ):
        """scales: of keys and values in an FP8 cache, as vLLM's layer has them."""
        self.choose, self.causal, self.device, self.dtype = choose, causal, device, dtype
        self.layer = layer = Layer.drawn(choose, random, dims)
        counts = [choose.randint(1, tokens) for _ in range(choose.randint(1, requests))]
        widths = [-(-each // layer.page) for each in counts]
        pages = choose.sample(range(sum(widths) + 3), sum(widths))
        self.requests = [Request(count, [pages.pop() for _ in range(width)], layer, random, device, dtype) for count, width in zip(counts, widths)]
        shape = backend.get_kv_cache_shape(sum(widths) + 3, layer.page, layer.heads_kv, layer.dim)
        # vLLM keeps FP8 pages as bytes, of which this is a NaN in both formats.
        is_float8 = kv_cache_dtype.startswith("fp8")
        self.cache = torch.full(shape, 0x7F if is_float8 else math.nan, device=device, dtype=torch.uint8 if is_float8 else dtype)
        self.scales = types.SimpleNamespace(**{f"_{name}_scale": torch.tensor(each, device=device) for name, each in zip("kv", scales or ())})
        self.implementation = implementation(layer, backend, device, kv_cache_dtype)
        self.builder = builder(backend, device, speculative)

    def is_done(self):
        return all(each.done == len(each.q) for each in self.requests)

    def _counts(self):
        """How many tokens each request brings: none, one, some, and a prompt's first chunk. Mostly those that vLLM takes for decode steps are first."""
        choose, counts = self.choose, []
        for each in self.requests:
            left = len(each.q) - each.done
            count = choose.choice([0, 1, 1, choose.randint(2, 5)]) if each.done else choose.randint(1, max(9, left // 2))
            counts.append(min(count, left))
        order = list(range(len(counts)))
        choose.shuffle(order)
        if choose.random() < 0.7:
            order.sort(key=lambda number: counts[number] > self.builder.reorder_batch_threshold)
        self.requests = [self.requests[number] for number in order]
        return [counts[number] for number in order]

    def step(self):
        """[(request, its first token, behind its last one, the output)] of a step, whose padding is left as it was."""
        counts = self._counts()
        ends = [each.done + count for each, count in zip(self.requests, counts)]
        tokens, padding = sum(counts), self.choose.choice([0, 3])
        if not tokens:
            return []
        table = torch.full((len(self.requests), max(len(each.pages) for each in self.requests)), -1, dtype=torch.int32)
        for row, each in zip(table, self.requests):
            row[: len(each.pages)] = torch.tensor(each.pages, dtype=torch.int32)
        counted = self.choose.choice([0, 0, padding])
        common = described(counts, ends, table, padding=counted, causal=self.causal, device=self.device)

        def padded(name):
            rows = torch.cat([getattr(each, name)[each.done : end] for each, end in zip(self.requests, ends)])
            return torch.cat([rows, rows.new_full((padding, *rows.shape[1:]), math.nan)])

        layer = self.layer
        output = torch.full((tokens + padding, layer.heads * layer.dim), 7.0, device=self.device, dtype=self.dtype)
        metadata = self.builder.build(0, common)
        assert self.implementation.forward(self.scales, padded("q"), padded("k"), padded("v"), self.cache, metadata, output) is output
        assert (output[tokens + counted :] == 7).all()
        found = []
        for first, count, each, end in zip(itertools.accumulate([0, *counts]), counts, self.requests, ends):
            if count:
                found.append((each, each.done, end, output[first : first + count].view(count, layer.heads, layer.dim)))
            each.done = end
        return found
