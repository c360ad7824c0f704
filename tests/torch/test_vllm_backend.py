"""vLLM's backend over stand-ins of the classes that it stands on: steps of an engine, with prompts in chunks, decode steps and new requests, against dense
float64. Where vLLM is installed, its own signatures are those of the stand-ins."""

import dataclasses
import enum
import importlib
import importlib.util
import inspect
import math
import random as pseudo_random
import sys
import types
from pathlib import Path

import dense_reference as dense
import pytest
import torch

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
    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        self.device = device

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        raise NotImplementedError


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
    seq_lens: torch.Tensor
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    block_table_tensor: torch.Tensor
    causal: bool | torch.Tensor = True


@pytest.fixture
def plugin(monkeypatch):
    registered = {}
    registry = types.SimpleNamespace(AttentionBackendEnum=types.SimpleNamespace(CUSTOM="CUSTOM"), register_backend=registered.__setitem__)
    backend = types.SimpleNamespace(**{each.__name__: each for each in STAND_INS})
    for name, module in {"vllm.v1.attention.backend": backend, "vllm.v1.attention.backends.registry": registry}.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.syspath_prepend(str(FOLDER))
    importlib.import_module("scoremod_vllm").register()
    module, name = registered["CUSTOM"].rsplit(".", 1)
    yield getattr(importlib.import_module(module), name)
    for each in [each for each in sys.modules if each.startswith("scoremod_vllm")]:
        del sys.modules[each]


class Request:
    """A request's tokens, whose queries, keys and values are known beforehand, how many of them are done, and its pages."""

    def __init__(self, tokens, pages, layer, random):
        self.done, self.pages = 0, pages
        self.q, self.k, self.v = (torch.randn(tokens, heads, layer.dim, generator=random) for heads in (layer.heads, layer.heads_kv, layer.heads_kv))


@dataclasses.dataclass
class Layer:
    heads: int
    heads_kv: int
    dim: int
    page: int
    options: dict

    @staticmethod
    def drawn(choose, random):
        heads_kv = choose.choice([1, 2])
        heads = heads_kv * choose.choice([1, 2])
        options = {
            "alibi_slopes": choose.choice([None, torch.rand(heads, generator=random).tolist()]),
            "sliding_window": choose.choice([None, None, 1, 3, 7]),
            "logits_soft_cap": choose.choice([None, None, 0, 2.0]),
            "sinks": choose.choice([None, torch.randn(heads, generator=random)]),
        }
        return Layer(heads, heads_kv, choose.choice([8, 16]), choose.choice([1, 4, 16]), options)


def truth(layer, request, first, end, causal):
    """Rows first to end of a request in float64, of the keys up to end."""
    q, k, v = (each.double() for each in (request.q[first:end], request.k[:end], request.v[:end]))
    slopes, window, cap, sinks = (layer.options[name] for name in ("alibi_slopes", "sliding_window", "logits_soft_cap", "sinks"))

    def score_mod(s, b, h, i, j):
        s = cap * torch.tanh(s / cap) if cap else s
        return s if slopes is None else s - torch.tensor(slopes)[h] * (i + first - j).abs()

    def mask_mod(b, h, i, j):
        kept = (i + first >= j) if causal else (i >= -1) & (j >= 0)
        return kept if window is None else kept & (i + first - j < window)

    arrays = [each.transpose(0, 1)[None] for each in (q, k, v)]
    return dense.attention_and_lse(*arrays, score_mod, mask_mod, scale=0.3, sink=sinks)[0][0].transpose(0, 1)


def step(layer, requests, choose, cache, implementation, builder, causal):
    """One step of all requests that have tokens left: a chunk of each, one after the other, padding behind."""
    counts = [choose.choice([0, 1, 1, min(5, len(each.q) - each.done)]) if each.done else min(choose.randint(1, 9), len(each.q)) for each in requests]
    counts = [min(count, len(each.q) - each.done) for count, each in zip(counts, requests)]
    tokens, padding = sum(counts), choose.choice([0, 3])
    if not tokens:
        return
    ends = [each.done + count for each, count in zip(requests, counts)]
    table = torch.full((len(requests), max(len(each.pages) for each in requests)), -1, dtype=torch.int32)
    for row, each in zip(table, requests):
        row[: len(each.pages)] = torch.tensor(each.pages, dtype=torch.int32)
    offsets = torch.tensor([0, *counts], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    common = CommonAttentionMetadata(offsets, torch.tensor(ends, dtype=torch.int32), tokens, max(counts), max(ends) + choose.choice([0, 9]), table, causal)

    def padded(name):
        rows = torch.cat([getattr(each, name)[each.done : end] for each, end in zip(requests, ends)])
        return torch.cat([rows, torch.full((padding, *rows.shape[1:]), math.nan)])

    output = torch.full((tokens + padding, layer.heads * layer.dim), 7.0)
    metadata = builder.build(0, common)
    assert implementation.forward(None, padded("q"), padded("k"), padded("v"), cache, metadata, output) is output
    for first, count, each, end in zip(offsets, counts, requests, ends):
        if count:
            expected = truth(layer, each, each.done, end, causal)
            torch.testing.assert_close(output[first : first + count].view(count, layer.heads, layer.dim).double(), expected, rtol=1e-4, atol=1e-4)
        each.done = end
    assert (output[tokens:] == 7).all()


@pytest.mark.parametrize("causal", [True, False])
def test_steps_of_an_engine(plugin, causal, seed):
    for number in range(6):
        print("draw", number)
        choose, random = pseudo_random.Random(seed + number), torch.Generator().manual_seed(seed + number)
        layer = Layer.drawn(choose, random)
        tokens = [choose.randint(1, 25) for _ in range(choose.randint(1, 4))]
        widths = [-(-each // layer.page) for each in tokens]
        pages = choose.sample(range(sum(widths) + 3), sum(widths))
        requests = [Request(count, [pages.pop() for _ in range(width)], layer, random) for count, width in zip(tokens, widths)]
        cache = torch.full(plugin.get_kv_cache_shape(sum(widths) + 3, layer.page, layer.heads_kv, layer.dim), math.nan)
        implementation = plugin.get_impl_cls()(layer.heads, layer.dim, 0.3, layer.heads_kv, **layer.options)
        builder = plugin.get_builder_cls()(None, ["layer"], None, "cpu")
        while any(each.done < len(each.q) for each in requests):
            step(layer, requests, choose, cache, implementation, builder, causal)


def test_a_layer_that_shares_a_cache_writes_nothing(plugin):
    implementation = plugin.get_impl_cls()(1, 8, 1.0, kv_sharing_target_layer_name="layer 0")
    cache = torch.randn(2, 2, 4, 1, 8)
    before, output = cache.clone(), torch.empty(1, 1, 8)
    common = CommonAttentionMetadata(torch.tensor([0, 1]), torch.tensor([3]), 1, 1, 3, torch.tensor([[1]]))
    implementation.forward(None, *torch.randn(3, 1, 1, 8), cache, plugin.get_builder_cls()(None, [], None, "cpu").build(0, common), output)
    assert torch.equal(cache, before) and output.isfinite().all()


def test_what_it_says_of_a_configuration(plugin):
    good = (64, torch.bfloat16, "auto", 16, False, True, False, False, None)
    assert plugin.supports_combination(*good) is None
    assert "multiple of 8 up to 256, found 512" in plugin.supports_combination(512, *good[1:])
    assert "--kv-cache-dtype auto" in plugin.supports_combination(*good[:2], "fp8", *good[3:])
    assert plugin.supports_sink() and plugin.get_name() == "CUSTOM" and not plugin.supports_attn_type(AttentionType.ENCODER)


def test_what_it_refuses(plugin):
    implementation, builder = plugin.get_impl_cls(), plugin.get_builder_cls()(None, [], None, "cpu")
    with pytest.raises(NotImplementedError, match="attention of a decoder"):
        implementation(1, 8, 1.0, attn_type=AttentionType.ENCODER)
    with pytest.raises(ValueError, match=r"sinks of shape \(2,\)"):
        implementation(2, 8, 1.0, sinks=torch.zeros(3))
    common = CommonAttentionMetadata(torch.tensor([0, 1]), torch.tensor([3]), 1, 1, 3, torch.tensor([[1]]))
    with pytest.raises(NotImplementedError, match="no common prefix"):
        builder.build(16, common)
    with pytest.raises(NotImplementedError, match="found a tensor"):
        builder.build(0, dataclasses.replace(common, causal=torch.tensor([True])))
    with pytest.raises(NotImplementedError, match="quantization"):
        implementation(1, 8, 1.0).forward(None, None, None, None, None, None, None, output_scale=torch.ones(()))
    output = torch.ones(2, 1, 8)
    implementation(1, 8, 1.0).forward(None, *torch.randn(3, 2, 1, 8), None, None, output)
    assert not output.any()


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM isn't installed")
@pytest.mark.parametrize("stand_in", STAND_INS, ids=lambda each: each.__name__)
def test_vllm_has_these_signatures(stand_in):
    real = getattr(importlib.import_module("vllm.v1.attention.backend"), stand_in.__name__)
    for name, function in vars(stand_in).items():
        if inspect.isfunction(function) or isinstance(function, classmethod):
            parameters = list(inspect.signature(getattr(stand_in, name)).parameters)
            assert list(inspect.signature(getattr(real, name)).parameters)[: len(parameters)] == parameters, name
