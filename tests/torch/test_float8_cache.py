"""FP8 key and value under a wider query: against attention to the scaled values, and calls that are refused."""

import dense_reference as dense
import pytest
import torch
from torch.nn.attention.flex_attention import AuxRequest

import scoremod
from scoremod.torch import eager_calls, explain, flex_attention

BATCH, HEADS, HEADS_KV, SEQ, DIM = 2, 4, 2, 24, 16
FORMATS = [torch.float8_e4m3fn, torch.float8_e5m2]
SCALES = {"descale_k": 0.06, "descale_v": torch.tensor([0.03, 0.5])}


@pytest.fixture(autouse=True)
def afresh(monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setattr(eager_calls, "_kept", {})


def draw(dtype, dtype_kv, random):
    query = torch.randn(BATCH, HEADS, SEQ, DIM, generator=random).to(dtype)
    key, value = ((32 * torch.randn(BATCH, HEADS_KV, SEQ, DIM, generator=random)).to(dtype_kv) for _ in range(2))
    return query, key, value


def numbers(tensors, dtype=torch.float32):
    """The values, in float32."""
    query, key, value = tensors
    return query.to(dtype), key.to(dtype) * torch.tensor(SCALES["descale_k"]), value.to(dtype) * SCALES["descale_v"][:, None, None]


def score_mod(score, b, h, q_idx, kv_idx):
    return 4 * torch.tanh(score / 4)


def causal(b, h, q_idx, kv_idx):
    return kv_idx <= q_idx


@pytest.mark.parametrize("dtype_kv", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_it_is_attention_of_the_numbers(dtype, dtype_kv, random):
    tensors = draw(dtype, dtype_kv, random)
    options = dict(mask_mod=causal, enable_gqa=True, return_aux=AuxRequest(lse=True, max_scores=True))
    o, aux = flex_attention(*tensors, score_mod, **SCALES, **options)
    truth = dense.attention_and_lse(*numbers(tensors, torch.float64), score_mod, causal)
    assert o.dtype == dtype
    largest = truth[0].abs().max()
    assert (o.double() - truth[0]).abs().max() <= (torch.finfo(dtype).eps + 1e-5) * largest
    torch.testing.assert_close(aux.lse.double(), truth[1], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(aux.max_scores, flex_attention(*numbers(tensors), score_mod, **options)[1].max_scores)


def test_other_scales_compile_nothing(random, monkeypatch):
    tensors = draw(torch.bfloat16, FORMATS[0], random)
    run = lambda *scales: flex_attention(*tensors, descale_k=0.06, descale_v=torch.tensor(scales), enable_gqa=True)  # noqa: E731
    first = run(0.02, 0.03)
    monkeypatch.setattr(scoremod.torch.execution, "CompiledProblem", None)
    assert not torch.equal(run(0.02, 0.05), first) and torch.equal(run(0.02, 0.03), first)


def test_scales_may_be_any_view(random):
    tensors = draw(torch.bfloat16, FORMATS[0], random)
    spread = torch.stack([SCALES["descale_v"], torch.full((2,), 9.0)], 1)[:, 0]
    assert not spread.is_contiguous()
    found = flex_attention(*tensors, descale_k=torch.tensor([[0.06]]), descale_v=spread, enable_gqa=True)
    assert torch.equal(found, flex_attention(*tensors, **SCALES, enable_gqa=True))


def test_compiled(random):
    tensors = draw(torch.bfloat16, FORMATS[0], random)

    def function(q, k, v, scales):
        return flex_attention(q, k, v, score_mod, mask_mod=causal, enable_gqa=True, return_lse=True, descale_k=0.06, descale_v=scales)

    found = torch.compile(function, fullgraph=True, backend="aot_eager")(*tensors, SCALES["descale_v"])
    for x, y in zip(found, function(*tensors, SCALES["descale_v"]), strict=True):
        torch.testing.assert_close(x, y)


def test_pages_and_mixed_batches(random):
    query, key, value = draw(torch.float32, FORMATS[0], random)
    options = dict(**SCALES, enable_gqa=True)
    expected = flex_attention(query, key, value, mask_mod="causal_bottom_right", **options)
    pools = [x.reshape(BATCH, HEADS_KV, 3, 8, DIM).transpose(1, 2).flatten(0, 1) for x in (key, value)]
    pages = dict(page_table=torch.arange(6).reshape(2, 3), lengths=torch.full((2,), SEQ), mask_mod="causal_bottom_right", **options)
    torch.testing.assert_close(flex_attention(query, *pools, **pages), expected)
    tokens = torch.cat([query[0, :, -1:], query[1]], 1).transpose(0, 1)
    found = flex_attention(tokens, *pools, q_offsets=torch.tensor([0, 1, 1 + SEQ]), **pages)
    torch.testing.assert_close(found, torch.cat([expected[0, :, -1:], expected[1]], 1).transpose(0, 1))


def test_sinks_and_lengths(random):
    query, key, value = draw(torch.float32, FORMATS[1], random)
    options = dict(sink=torch.randn(HEADS, generator=random), lengths=torch.tensor([5, SEQ]), enable_gqa=True, return_lse=True)
    found = flex_attention(query, key, value, **SCALES, **options)
    torch.testing.assert_close(found, flex_attention(*numbers([query, key, value]), **options))


def test_explain_names_the_dtype(random):
    found = explain(*draw(torch.bfloat16, FORMATS[0], random), enable_gqa=True)
    assert found.problem["dtype"] == "bf16" and found.problem["dtype_kv"] == "e4m3" and found.answers()["cpu"] == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"descale_k": None}, "descale_k: expected the factor of an FP8 key and value under a wider query, found none"),
        ({"descale_v": None}, "descale_v: expected the factor"),
        ({"descale_q": 1.0}, "descale_q: expected none beside a query of bfloat16"),
        ({"scale_o": 1.0}, "scale_o: expected none beside a query of bfloat16"),
        ({"descale_k": 0.0}, "descale_k: expected a positive finite number, found 0.0"),
        ({"descale_k": torch.ones(3)}, "descale_k: expected a positive number or floats of one element, or of one for each of 2 KV heads"),
        ({"descale_k": torch.ones(2, dtype=torch.int32)}, "descale_k: expected a positive number or floats"),
        ({"descale_v": torch.tensor([1.0, -1.0])}, "'descale_v': expected a positive finite factor, found -1"),
        ({"descale_v": torch.ones(2, device="meta")}, "descale_v: expected a tensor on cpu, where query is, found one on meta"),
    ],
)
def test_mistakes(options, message, random):
    with pytest.raises(scoremod.InvalidArgumentError, match=message):
        flex_attention(*draw(torch.bfloat16, FORMATS[0], random), enable_gqa=True, **(SCALES | options))


@pytest.mark.parametrize("rank", [0, 1, 2, 5])
def test_keys_of_another_rank_are_refused(rank, random):
    """Found at random: their KV heads, of which a scale may have one each, were looked for before."""
    query, key, value = draw(torch.bfloat16, FORMATS[0], random)
    with pytest.raises(scoremod.InvalidArgumentError, match="key: expected 4 dimensions"):
        flex_attention(query, torch.zeros([2] * rank).to(key.dtype), value, enable_gqa=True, **SCALES)


def test_what_is_refused_by_name(random):
    query, key, value = draw(torch.bfloat16, FORMATS[0], random)
    with pytest.raises(scoremod.UnsupportedError, match="query: expected no gradient in a call whose key and value are an FP8 cache"):
        flex_attention(query.clone().requires_grad_(), key, value, enable_gqa=True, **SCALES)
    slopes = torch.ones(HEADS, requires_grad=True)
    with pytest.raises(scoremod.UnsupportedError, match="a captured tensor: expected no gradient in a call"):
        flex_attention(query, key, value, lambda s, b, h, i, j: s * slopes[h], enable_gqa=True, **SCALES)
    with torch.no_grad():
        flex_attention(query.clone().requires_grad_(), key, value, enable_gqa=True, **SCALES)
    for tensors in ((query, key, value.to(FORMATS[1])), (query, key, value.float()), (key, query, query)):
        with pytest.raises(scoremod.InvalidArgumentError, match="or key and value of one FP8 dtype under a wider query"):
            flex_attention(*tensors, enable_gqa=True, descale_k=1.0, descale_v=1.0)
