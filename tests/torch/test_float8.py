"""FP8 tensors: against dense attention to the descaled values, and calls that are refused."""

import dense_reference as dense
import pytest
import torch
from torch.nn.attention.flex_attention import AuxRequest

import scoremod
from scoremod.torch import context_parallel_attention, eager_calls, explain, flex_attention

BATCH, HEADS, HEADS_KV, SEQ, DIM = 2, 4, 2, 24, 16
FORMATS = [torch.float8_e4m3fn, torch.float8_e5m2]
DESCALES = {"descale_q": 0.05, "descale_k": 0.06, "descale_v": 0.03}


@pytest.fixture(autouse=True)
def afresh(monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setattr(eager_calls, "_kept", {})


def draw(dtype, random):
    shapes = (BATCH, HEADS, SEQ, DIM), (BATCH, HEADS_KV, SEQ, DIM), (BATCH, HEADS_KV, SEQ, DIM)
    return [(32 * torch.randn(shape, generator=random)).to(dtype) for shape in shapes]


def numbers(tensors, dtype=torch.float32):
    """The descaled values."""
    return [tensor.to(dtype) * torch.tensor(factor).to(dtype) for tensor, factor in zip(tensors, DESCALES.values())]


def score_mod(score, b, h, q_idx, kv_idx):
    return 4 * torch.tanh(score / 4)


def causal(b, h, q_idx, kv_idx):
    return kv_idx <= q_idx


@pytest.mark.parametrize("dtype", FORMATS)
def test_it_is_attention_of_the_numbers(dtype, random):
    tensors = draw(dtype, random)
    options = dict(mask_mod=causal, enable_gqa=True, return_aux=AuxRequest(lse=True, max_scores=True), return_amax_o=True)
    o, aux, amax = flex_attention(*tensors, score_mod, **DESCALES, out_dtype=torch.float32, **options)
    plain, truth = (dense.attention_and_lse(*numbers(tensors, dtype), score_mod, causal) for dtype in (torch.float32, torch.float64))
    dense.assert_close([o, aux.lse], plain, truth)
    of_numbers = flex_attention(*numbers(tensors), score_mod, mask_mod=causal, enable_gqa=True, return_aux=AuxRequest(max_scores=True))[1]
    torch.testing.assert_close(aux.max_scores, of_numbers.max_scores)
    torch.testing.assert_close(amax, o.abs().max())
    assert amax.shape == () and flex_attention(*tensors, **DESCALES, enable_gqa=True).dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("out_dtype", FORMATS)
def test_the_output_is_scaled_rounded_and_saturated(dtype, out_dtype, random):
    """With one key, o is v: it is compared bit for bit."""
    q, k, v = (tensor[:, :, :1] for tensor in draw(dtype, random))
    largest = torch.finfo(out_dtype).max
    for scale in (1.0, 37.5, 1e6):
        options = dict(descale_v=torch.tensor([0.03]), enable_gqa=True)
        o, amax = flex_attention(q, k, v, **options, scale_o=scale, out_dtype=out_dtype, return_amax_o=True)
        unscaled = flex_attention(q, k, v, **options, out_dtype=torch.float32)
        torch.testing.assert_close(unscaled, numbers([q, k, v])[2].repeat_interleave(2, 1))
        expected = (unscaled.double() * scale).clamp(-largest, largest).float().to(out_dtype)
        assert o.dtype == out_dtype and torch.equal(o.float(), expected.float())
        torch.testing.assert_close(amax, unscaled.abs().max())


def test_other_factors_compile_nothing(random, monkeypatch):
    tensors = draw(FORMATS[0], random)
    run = lambda factor: flex_attention(*tensors, descale_q=factor, descale_k=0.06, descale_v=0.03, enable_gqa=True)  # noqa: E731
    first = run(0.02)
    monkeypatch.setattr(scoremod.torch.execution, "CompiledProblem", None)
    assert not torch.equal(run(0.05), first) and torch.equal(run(torch.tensor(0.02)), first)


@pytest.mark.parametrize("out_dtype", [None, torch.float32, FORMATS[1]])
def test_compiled(out_dtype, random):
    tensors = draw(FORMATS[0], random)

    def function(q, k, v, descale_q):
        scale_o = 2.0 if out_dtype in FORMATS else None
        options = dict(descale_q=descale_q, descale_v=0.03, out_dtype=out_dtype, scale_o=scale_o)
        return flex_attention(q, k, v, score_mod, mask_mod=causal, enable_gqa=True, return_lse=True, return_amax_o=True, **options)

    found = torch.compile(function, fullgraph=True, backend="aot_eager")(*tensors, torch.tensor(0.001))
    for x, y in zip(found, function(*tensors, torch.tensor(0.001)), strict=True):
        torch.testing.assert_close(x.float(), y.float())
        assert x.dtype == y.dtype


@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32])
def test_captured_tensors_and_sinks_have_gradients(out_dtype, random):
    tensors = draw(FORMATS[1], random)
    given = [torch.randn(HEADS, generator=random), torch.randn(HEADS, generator=random)]
    weights = [torch.randn(BATCH, HEADS, SEQ, DIM, generator=random), torch.randn(BATCH, HEADS, SEQ, generator=random)]

    def attend(qkv, slopes, sink, **options):
        alibi = lambda s, b, h, i, j: s + slopes[h] * (j - i)  # noqa: E731
        return flex_attention(*qkv, alibi, mask_mod=causal, enable_gqa=True, sink=sink, return_lse=True, **options)

    found = dense.results(lambda *x: attend(tensors, *x, **DESCALES, out_dtype=out_dtype), given, weights)
    o, lse = attend(numbers(tensors), *given)
    torch.testing.assert_close(found[:2], [o.to(out_dtype), lse])
    # The backward reads o's weight in the output's dtype, and o as it is stored. What rounding took from a row's sum of d_o * o acts on
    # gradients as a weight of its LSE would.
    w_o, w_lse = weights[0].to(out_dtype).float(), weights[1]
    w_lse = w_lse + (w_o * (o - found[0].float())).sum(dim=-1)
    expected = dense.results(lambda *x: attend(numbers(tensors), *x), given, [w_o, w_lse])
    for x, y in zip(found[2:], expected[2:]):
        assert (x.double() - y.double()).abs().max() <= 4e-5 * y.double().abs().max()


def test_float8_sequences_and_pages(random):
    q, k, v = (x[:1] for x in draw(FORMATS[0], random))
    options = dict(**DESCALES, enable_gqa=True, out_dtype=torch.float32)
    expected = flex_attention(q, k, v, **options)
    tokens = [x[0].transpose(0, 1) for x in (q, k, v)]
    found = flex_attention(*tokens, q_offsets=torch.tensor([0, SEQ]), **options)
    torch.testing.assert_close(found, expected[0].transpose(0, 1))
    pools = [x.reshape(HEADS_KV, 3, 8, DIM).transpose(0, 1) for x in (k, v)]
    pages = dict(page_table=torch.tensor([[0, 1, 2]]), lengths=torch.tensor([SEQ]), **options)
    torch.testing.assert_close(flex_attention(q, *pools, **pages), expected)
    slope = torch.tensor(0.5, requires_grad=True)  # for whose gradient the pages are gathered
    flex_attention(q, *pools, lambda s, b, h, i, j: s * slope, **pages).sum().backward()
    assert slope.grad.abs() > 0


def test_explain_names_the_dtype(random):
    found = explain(*draw(FORMATS[0], random), enable_gqa=True)
    assert found.problem["dtype"] == "e4m3" and found.problem["dtype_o"] == "bf16" and found.answers()["cpu"] == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"descale_q": 0.0}, "descale_q: expected a positive finite number, found 0.0"),
        ({"descale_k": float("nan")}, "descale_k: expected a positive finite number"),
        ({"descale_v": torch.ones(2)}, "descale_v: expected a positive number or floats of one element"),
        ({"descale_v": -torch.ones(1)}, "'descale_v': expected a positive finite factor, found -1"),
        ({"descale_v": torch.ones(1, device="meta")}, "descale_v: expected a tensor on cpu, where query is, found one on meta"),
        ({"out_dtype": torch.int32}, "out_dtype: expected one of"),
        ({"out_dtype": torch.float8_e4m3fn}, "scale_o: expected one with an FP8 out_dtype and none with another, found none"),
        ({"scale_o": 2.0}, "scale_o: expected one with an FP8 out_dtype and none with another, found one"),
    ],
)
def test_mistakes(options, message, random):
    with pytest.raises(scoremod.InvalidArgumentError, match=message):
        flex_attention(*draw(FORMATS[0], random), enable_gqa=True, **options)


def test_what_is_refused_by_name(random):
    q, k, v = draw(FORMATS[0], random)
    floats = [x.float() for x in (q, k, v)]
    for name, value in (("descale_q", 1.0), ("scale_o", 1.0), ("out_dtype", torch.float32), ("return_amax_o", True)):
        with pytest.raises(scoremod.InvalidArgumentError, match=f"{name}: expected none beside a query of float32"):
            flex_attention(*floats, enable_gqa=True, **{name: value})
    with pytest.raises(scoremod.InvalidArgumentError, match="one dtype"):
        flex_attention(q, k.to(FORMATS[1]), v, enable_gqa=True)
    with pytest.raises(scoremod.UnsupportedError, match="query: expected no gradient with respect to an FP8 tensor"):
        flex_attention(q.clone().requires_grad_(), k, v, enable_gqa=True)
    slopes = torch.ones(HEADS, requires_grad=True)
    with pytest.raises(scoremod.UnsupportedError, match="out_dtype: expected 16 bits or more of an output that is differentiated"):
        flex_attention(q, k, v, lambda s, b, h, i, j: s * slopes[h], enable_gqa=True, out_dtype=FORMATS[0], scale_o=1.0)
    with pytest.raises(scoremod.UnsupportedError, match="context_parallel_attention: expected query, key and value of 16 bits"):
        import torch.distributed as dist

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            context_parallel_attention(q, k, v, group=dist.group.WORLD, enable_gqa=True)
        finally:
            dist.destroy_process_group()


def test_an_fp8_output_of_no_queries_beside_a_learned_tensor(random):
    q, k, v = draw(FORMATS[0], random)
    slopes = torch.ones(HEADS, requires_grad=True)
    o, lse = flex_attention(
        q[:, :, :0], k, v, lambda s, b, h, i, j: s + slopes[h], enable_gqa=True, return_lse=True, out_dtype=FORMATS[0], scale_o=2.0, **DESCALES
    )
    lse.sum().backward()
    assert o.shape == (BATCH, HEADS, 0, DIM) and o.dtype == FORMATS[0] and (slopes.grad == 0).all()


def test_the_lse_of_fp8_tensors_is_differentiated_under_autocast(random):
    q, k, v = draw(FORMATS[0], random)
    slopes = torch.ones(HEADS, requires_grad=True)

    def gradient():
        o, lse = flex_attention(q, k, v, lambda s, b, h, i, j: s + slopes[h] * (j - i), enable_gqa=True, return_lse=True, **DESCALES)
        return torch.autograd.grad(lse.sum() + o.float().sum(), slopes)[0]

    with torch.autocast("cpu", torch.bfloat16):
        found = gradient()
    assert torch.equal(found, gradient())
