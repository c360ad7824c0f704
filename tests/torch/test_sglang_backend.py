"""SGLang's backend over stand-ins of the classes that it stands on, against dense float64.

Engines take random steps. Decode steps also run over tensors that stay where they are, as those of a graph do. Where SGLang's files are, its own
signatures are those of the stand-ins.
"""

import ast
import copy
import dataclasses
import importlib.util
import inspect
import random as pseudo_random
from pathlib import Path

import pytest
import sglang_engine
import torch
from served_requests import Layer, answer
from sglang_engine import AttentionType, ForwardMode, radix_attention, runner_of

PLAIN = Layer(2, 1, 8, 4, dict.fromkeys(("alibi_slopes", "sliding_window", "logits_soft_cap", "sinks")))


@pytest.fixture
def create():
    with sglang_engine.plugin() as function:
        yield function


def engine_of(create, seed):
    return sglang_engine.Engine(create, pseudo_random.Random(seed), torch.Generator().manual_seed(seed))


def assert_right(layer, found):
    for request, first, end, rows in found:
        torch.testing.assert_close(rows.double(), answer(layer, request, first, end), rtol=1e-4, atol=1e-4)


def test_steps_of_an_engine(create, seed):
    for number in range(10):
        print("draw", number)
        engine = engine_of(create, seed + number)
        while not engine.is_done():
            assert_right(engine.layer, engine.step())


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_steps_over_an_fp8_cache(create, dtype, seed):
    for number, scales in enumerate([(0.02, 0.05), (None, None), (0.3, 0.1)] * 2):
        print("draw", number)
        random = torch.Generator().manual_seed(seed + number)
        engine = sglang_engine.Engine(create, pseudo_random.Random(seed + number), random, cache_dtype=dtype, scales=scales)
        while not engine.is_done():
            found = []
            for request, *place in engine.step():
                of_cache = copy.copy(request)
                k_scale, v_scale = (scale or 1.0 for scale in scales)
                of_cache.k, of_cache.v = (request.k / k_scale).to(dtype).double() * k_scale, (request.v / v_scale).to(dtype).double() * v_scale
                found.append((of_cache, *place))
            assert_right(engine.layer, found)


@pytest.mark.parametrize(("on_host", "expected"), [([5, 1, 1], [[5], [6, 7]]), (None, [[5, 6, 7]])])
def test_a_mixed_batch_has_a_call_of_its_decode_steps(create, on_host, expected):
    backend = create(runner_of(PLAIN, sglang_engine.KVPool(9, PLAIN, "cpu", torch.float32), 4, 8))
    lengths, counts = torch.tensor([5, 6, 7]), torch.tensor([5, 1, 1])
    where = torch.arange(3), lengths, torch.arange(7)
    backend.init_forward_metadata(sglang_engine.ForwardBatch(ForwardMode.MIXED, 3, *where, lengths, extend_seq_lens=counts, extend_seq_lens_cpu=on_host))
    assert [call.lengths.tolist() for call in backend.forward_metadata.calls] == expected


def test_decode_steps_of_a_graph_read_tensors_that_stay(create, seed):
    """Replays run a graph's kernels on the same addresses: the metadata of the first batch serves the next, of other lengths, requests and pages."""
    for number in range(6):
        print("draw", number)
        engine = engine_of(create, seed + number)
        backend, layer = engine.backend, radix_attention(engine.layer)
        backend.init_cuda_graph_state(8, 8)
        assert backend.get_cuda_graph_seq_len_fill_value() == 1
        captured = None
        while not engine.is_done():
            taken = [each for each in engine.requests if each.done < len(each.q)]
            forward, (q, k, v) = engine.batch(taken, [1] * len(taken), False)
            forward.forward_mode = ForwardMode.DECODE
            # A graph of 5 sequences, of which some are padding.
            padding = 5 - len(taken)
            for name, value in (("req_pool_indices", 0), ("seq_lens", 1), ("out_cache_loc", 0)):
                setattr(forward, name, torch.nn.functional.pad(getattr(forward, name), (0, padding), value=value))
            forward.batch_size = 5
            q, k, v = (torch.nn.functional.pad(x, (0, 0, 0, 0, 0, padding)) for x in (q, k, v))
            backend.init_forward_metadata_out_graph(forward, in_capture=captured is None)
            backend.init_forward_metadata_in_graph(forward)
            captured = backend.forward_metadata if captured is None else captured
            backend.forward_metadata = captured
            o = backend.forward_decode(q.flatten(1), k, v, layer, forward, **engine.options).view(5, engine.layer.heads, engine.layer.dim)
            assert_right(engine.layer, [(each, each.done, each.done + 1, o[i : i + 1]) for i, each in enumerate(taken)])
            for each in taken:
                each.done += 1


def test_an_encoder_sees_all_keys(create, seed):
    engine = next(each for each in (engine_of(create, seed + n) for n in range(1000)) if type(each.pool) is sglang_engine.KVPool)
    request = engine.requests[0]
    forward, (q, k, v) = engine.batch([request], [len(request.q)], True)
    forward.forward_mode, forward.extend_seq_lens, forward.extend_seq_lens_cpu = ForwardMode.EXTEND, torch.tensor([len(request.q)]), [len(request.q)]
    engine.backend.init_forward_metadata(forward)
    layer = radix_attention(engine.layer, attn_type=AttentionType.ENCODER_ONLY, sliding_window_size=-1)
    o = engine.backend.forward(q.flatten(1), k, v, layer, forward, **engine.options)
    engine.layer.options["sliding_window"] = None
    expected = answer(engine.layer, request, 0, len(request.q), causal=False)
    torch.testing.assert_close(o.view(expected.shape).double(), expected, rtol=1e-4, atol=1e-4)


def test_what_it_refuses(create):
    pool = sglang_engine.KVPool(3, PLAIN, "cpu", torch.float32)
    runner = runner_of(PLAIN, pool, 2, 8)
    for change, words in (
        ({"use_mla_backend": True}, "without MLA"),
        ({"kv_cache_dtype": torch.uint8}, "fp8_e5m2, found torch.uint8; set --kv-cache-dtype auto"),
    ):
        with pytest.raises(NotImplementedError, match=words):
            create(runner_of(PLAIN, pool, 2, 8, **change))
    for name in ("is_encoder_decoder", "is_local_attention_model"):
        wrong = runner_of(PLAIN, pool, 2, 8)
        setattr(wrong.model_config, name, True)
        with pytest.raises(NotImplementedError, match="without an encoder" if name.startswith("is_e") else "chunked local attention"):
            create(wrong)
    backend, one = create(runner), torch.tensor([1])
    batch = sglang_engine.ForwardBatch(ForwardMode.DECODE, 1, one, one, one, one)
    with pytest.raises(NotImplementedError, match="after init_cuda_graph_state"):
        backend.init_forward_metadata_out_graph(batch)
    for name, value, words in (("forward_mode", ForwardMode.TARGET_VERIFY, "speculative"), ("spec_info", 1, "speculative"), ("encoder_lens", one, "encoder")):
        wrong = sglang_engine.ForwardBatch(ForwardMode.DECODE, 1, one, one, one, one)
        setattr(wrong, name, value)
        with pytest.raises(NotImplementedError, match=words):
            backend.init_forward_metadata(wrong)
    backend.init_forward_metadata(batch)
    new = torch.zeros(1, 16), torch.zeros(1, 1, 8), torch.zeros(1, 1, 8)
    for change, words in (
        ({"is_cross_attention": True}, "self-attention"),
        ({"attn_type": AttentionType.DECODER_BIDIRECTIONAL}, "self-attention"),
        ({"logit_cap": 2.0, "logit_capping_method": "other"}, "by tanh"),
        ({"pos_encoding_mode": "ALIBI"}, "encoding of positions"),
        ({"xai_temperature_len": 3}, "temperature"),
    ):
        with pytest.raises(NotImplementedError, match=words):
            backend.forward(*new, radix_attention(PLAIN, **change), batch)
    with pytest.raises(NotImplementedError, match="but sinks, found score_mod"):
        backend.forward(*new, radix_attention(PLAIN), batch, score_mod=print)
    assert backend.forward(*new, radix_attention(PLAIN), batch, score_mod=None, return_lse=False).shape == (1, 16)


def sglang_file(name):
    """A module of SGLang as it is written. Its files are read, not imported: they want a GPU's packages."""
    package = importlib.util.find_spec("sglang")
    if package is None:
        pytest.skip("SGLang isn't installed")
    return ast.parse((Path(package.submodule_search_locations[0]) / Path(*name.split(".")[1:])).with_suffix(".py").read_text(encoding="utf-8"))


def classes_of(tree):
    return {each.name: each for each in tree.body if isinstance(each, ast.ClassDef)}


def own_attributes(tree):
    """Names that methods give to their object, and those of a class's fields."""
    nodes = list(ast.walk(tree))
    assigned = {each.attr for each in nodes if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)}
    return assigned | {each.target.id for each in nodes if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)}


@pytest.mark.parametrize("name", sglang_engine.MODULES)
def test_sglang_has_these_signatures(name):
    real = classes_of(sglang_file(name))
    for stand_in in sglang_engine.MODULES[name]:
        methods = {each.name: each.args for each in real[stand_in.__name__].body if isinstance(each, ast.FunctionDef)}
        for method, function in vars(stand_in).items():
            if method.startswith("_") or not (inspect.isfunction(function) or isinstance(function, classmethod)):
                continue
            expected = inspect.getfullargspec(getattr(stand_in, method))
            assert [each.arg for each in methods[method].args] == expected.args, method
            assert {each.arg for each in methods[method].kwonlyargs} == set(expected.kwonlyargs), method


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("sglang.srt.layers.radix_attention", set(vars(radix_attention(PLAIN)))),
        ("sglang.srt.model_executor.forward_batch_info", {each.name for each in dataclasses.fields(sglang_engine.ForwardBatch)}),
        ("sglang.srt.model_executor.model_runner", set(vars(runner_of(PLAIN, None, 1, 1))) - {"token_to_kv_pool", "req_to_token_pool"}),
        ("sglang.srt.configs.model_config", set(vars(runner_of(PLAIN, None, 1, 1).model_config))),
    ],
)
def test_sglang_has_these_fields(name, fields):
    assert fields <= own_attributes(sglang_file(name))
