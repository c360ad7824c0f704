"""vLLM's backend over stand-ins of the classes that it stands on: steps of an engine, with prompts in chunks, decode steps and new requests, against dense
float64. Where vLLM is installed, its own signatures are those of the stand-ins."""

import copy
import dataclasses
import importlib
import importlib.util
import inspect
import sys
import random as pseudo_random

import pytest
import torch
import vllm_engine
from served_requests import answer
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from vllm_engine import STAND_INS, AttentionType

from scoremod import InvalidArgumentError
from scoremod.torch import execution, page_append
from scoremod.torch.float8 import factors_of


@pytest.fixture
def plugin():
    with vllm_engine.plugin() as backend:
        yield backend


@pytest.fixture
def calls(plugin, monkeypatch):
    """The arguments of each attention call that a layer makes."""
    made, backend = [], sys.modules["scoremod_vllm.backend"]
    attention = backend.flex_attention

    def counted(*tensors, **options):
        made.append((*tensors, options))
        return attention(*tensors, **options)

    monkeypatch.setattr(backend, "flex_attention", counted)
    return made


@pytest.mark.parametrize("speculative", [0, 3])
@pytest.mark.parametrize("causal", [True, False])
def test_steps_of_an_engine(plugin, causal, speculative, seed):
    for number in range(4):
        print("draw", number)
        choose, random = pseudo_random.Random(seed + number), torch.Generator().manual_seed(seed + number)
        engine = vllm_engine.Engine(plugin, choose, random, causal=causal, requests=6, speculative=speculative)
        while not engine.is_done():
            for request, first, end, found in engine.step():
                expected = answer(engine.layer, request, first, end, causal)
                torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)


def stored(numbers, dtype, scale):
    """Numbers as an FP8 cache has them."""
    largest = torch.finfo(dtype).max
    return (numbers / scale).clamp(-largest, largest).to(dtype).double() * scale


@pytest.mark.parametrize("kv_cache_dtype", ["fp8", "fp8_e4m3", "fp8_e5m2"])
def test_steps_over_fp8_pages(plugin, kv_cache_dtype, seed):
    """The second scale makes keys saturate in e4m3."""
    dtype = torch.float8_e5m2 if kv_cache_dtype == "fp8_e5m2" else torch.float8_e4m3fn
    for number, scales in enumerate([(0.02, 0.05), (0.003, 0.01), (1.0, 1.0)]):
        print("draw", number)
        choose, random = pseudo_random.Random(seed + number), torch.Generator().manual_seed(seed + number)
        engine = vllm_engine.Engine(plugin, choose, random, requests=5, kv_cache_dtype=kv_cache_dtype, scales=scales)
        while not engine.is_done():
            for request, first, end, found in engine.step():
                of_cache = copy.copy(request)
                of_cache.k, of_cache.v = (stored(each, dtype, scale) for each, scale in zip((request.k, request.v), scales))
                torch.testing.assert_close(found.double(), answer(engine.layer, of_cache, first, end), rtol=1e-4, atol=1e-4)


def test_scales_of_fp8_pages_stay_on_the_device():
    """Fake tensors have no numbers: reading one raises."""
    with FakeTensorMode():
        pool = torch.empty(4, 2, 16, 8, dtype=torch.float8_e4m3fn, device="cuda")
        new, scale = torch.empty(3, 2, 8, dtype=torch.bfloat16, device="cuda"), torch.empty((), device="cuda")
        assert page_append.quantized("descale_k", new, pool, scale).dtype == pool.dtype
        factors, _ = factors_of(new, pool, pool, {"descale_q": None, "descale_k": scale, "descale_v": scale}, None, None, False)
        assert [each.device.type for each in factors] == ["cuda"] * 2
        with pytest.raises(DataDependentOutputException):
            scale.item()


# (counts of queries, speculative tokens, padding) -> (sequences, tokens, the most queries, queries of each) of each call
SPLITS = [
    (([1, 1, 1], 0, 0), [(3, (0, 3), 1, 1)]),
    (([1, 1, 5, 9], 0, 0), [(2, (0, 2), 1, 1), (2, (2, 16), 16, None)]),
    (([1, 1, 5, 9], 0, 2), [(2, (0, 2), 1, 1), (2, (2, 18), 16, None)]),
    (([5, 9], 0, 0), [(2, (0, 14), 16, None)]),
    (([7, 7], 0, 0), [(2, (0, 14), 8, None)]),
    (([4, 4, 4], 3, 0), [(3, (0, 12), 4, 4)]),
    (([4, 4, 33], 3, 0), [(2, (0, 8), 4, 4), (1, (8, 41), 64, None)]),
    (([4, 1, 0, 33, 0], 3, 0), [(3, (0, 5), 4, None), (2, (5, 38), 64, None)]),
    (([3, 4], 3, 0), [(2, (0, 7), 4, None)]),
    (([1, 1, 0], 0, 0), [(3, (0, 2), 1, None)]),
    (([1, 1], 0, 3), [(2, (0, 5), 1, None)]),
    (([0, 0, 6], 0, 0), [(3, (0, 6), 8, None)]),
    (([6, 1, 1], 0, 0), [(1, (0, 6), 8, None), (2, (6, 8), 1, 1)]),
    (([6, 1, 1], 0, 2), [(1, (0, 6), 8, None), (2, (6, 10), 1, None)]),
    (([1, 6, 1], 0, 0), [(1, (0, 1), 1, 1), (1, (1, 7), 8, None), (1, (7, 8), 1, 1)]),
]


@pytest.mark.parametrize("given, expected", SPLITS, ids=lambda each: str(each[0]))
def test_calls_of_a_batch(plugin, calls, given, expected):
    counts, speculative, padding = given
    builder, table = vllm_engine.builder(plugin, speculative=speculative), torch.arange(len(counts) * 4, dtype=torch.int32).view(-1, 4)
    metadata = builder.build(0, vllm_engine.described(counts, [max(each, 9) for each in counts], table, padding=padding))
    found = [(len(each.lengths), (each.tokens.start, each.tokens.stop), each.most, each.count) for each in metadata.calls]
    assert found == expected and [len(each.page_table) for each in metadata.calls] == [each[0] for each in expected]
    output, tokens = torch.zeros(sum(counts) + padding, 1, 8), torch.randn(3, sum(counts) + padding, 1, 8)
    plugin.get_impl_cls()(1, 8, 1.0).forward(None, *tokens, torch.zeros(len(counts) * 4, 2, 16, 1, 8), metadata, output)
    # A call of equal counts has its queries as [sequences, heads, queries, dim], any other has them one sequence after the other.
    shapes = [(sequences, 1, count, 8) if count else (end - first, 1, 8) for sequences, (first, end), _, count in expected]
    assert [tuple(query.shape) for query, *_ in calls] == shapes
    assert [options.get("max_length") for *_, options in calls] == [None if each[3] else each[2] for each in expected]


def test_a_graph_has_one_call_whatever_the_batch(plugin):
    common = vllm_engine.described([1, 1, 5], [9, 9, 9], torch.arange(12).view(3, 4))
    (found,) = vllm_engine.builder(plugin).build_for_cudagraph_capture(common).calls
    assert found.tokens == slice(0, 7) and found.count is None and found.most == 8 and found.offsets is common.query_start_loc


def test_batches_of_other_sizes_compile_nothing(plugin, nothing_compiled, seed):
    choose = pseudo_random.Random(seed)
    implementation, builder, cache = plugin.get_impl_cls()(1, 8, 1.0), vllm_engine.builder(plugin), torch.randn(64, 2, 16, 1, 8)
    for _ in range(40):
        counts = [1] * choose.randint(0, 5) + [choose.randint(33, 64) for _ in range(choose.randint(1, 3))]
        table = torch.randperm(64)[: len(counts) * 8].view(-1, 8).int()
        tokens, output = torch.randn(3, sum(counts), 1, 8), torch.empty(sum(counts), 1, 8)
        metadata = builder.build(0, vllm_engine.described(counts, [choose.randint(count, 128) for count in counts], table))
        implementation.forward(None, *tokens, cache, metadata, output)
    assert len(execution._open) == 2  # of decode steps, and of prompts


def test_layers_of_a_step_share_where_its_tokens_go(plugin, monkeypatch):
    made, slots = [], page_append._slots
    monkeypatch.setattr(page_append, "_slots", lambda *arguments: made.append(arguments) or slots(*arguments))
    implementation, caches = plugin.get_impl_cls()(1, 8, 1.0), torch.zeros(3, 4, 2, 4, 1, 8)
    metadata = vllm_engine.builder(plugin).build(0, vllm_engine.described([1, 3], [6, 3], torch.tensor([[2, 0], [3, 1]])))
    for cache in caches:
        tokens = torch.randn(3, 4, 1, 8)
        implementation.forward(None, *tokens, cache, metadata, torch.empty(4, 1, 8))
        expected = torch.zeros_like(cache)
        expected[[0, 3, 3, 3], :, [1, 0, 1, 2]] = tokens[1:].transpose(0, 1)
        assert torch.equal(cache, expected)
    assert len(made) == 1
    with pytest.raises(InvalidArgumentError, match="as the pages are"):
        implementation.forward(None, *tokens, caches[0].to(torch.float8_e4m3fn), metadata, torch.empty(4, 1, 8))


def test_a_layer_that_shares_a_cache_writes_nothing(plugin):
    implementation = plugin.get_impl_cls()(1, 8, 1.0, kv_sharing_target_layer_name="layer 0")
    cache = torch.randn(2, 2, 4, 1, 8)
    before, output = cache.clone(), torch.empty(1, 1, 8)
    common = vllm_engine.described([1], [3], torch.tensor([[1]]))
    implementation.forward(None, *torch.randn(3, 1, 1, 8), cache, vllm_engine.builder(plugin).build(0, common), output)
    assert torch.equal(cache, before) and output.isfinite().all()


def test_what_it_says_of_a_configuration(plugin):
    good = (64, torch.bfloat16, "auto", 16, False, True, False, False, None)
    assert plugin.supports_combination(*good) is None
    assert "multiple of 8 up to 256, found 512" in plugin.supports_combination(512, *good[1:])
    assert "fp8_e5m2, found int8; set --kv-cache-dtype auto" in plugin.supports_combination(*good[:2], "int8", *good[3:])
    for name in ("fp8", "fp8_e4m3", "fp8_e5m2"):
        assert plugin.supports_kv_cache_dtype(name) and plugin.supports_combination(*good[:2], name, *good[3:]) is None
    assert plugin.supports_sink() and plugin.get_name() == "CUSTOM" and not plugin.supports_attn_type(AttentionType.ENCODER)


def test_what_it_refuses(plugin):
    implementation, builder = plugin.get_impl_cls(), vllm_engine.builder(plugin)
    with pytest.raises(NotImplementedError, match="attention of a decoder"):
        implementation(1, 8, 1.0, attn_type=AttentionType.ENCODER)
    with pytest.raises(ValueError, match=r"sinks of shape \(2,\)"):
        implementation(2, 8, 1.0, sinks=torch.zeros(3))
    common = vllm_engine.described([1], [3], torch.tensor([[1]]))
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
