"""token_list=: each query attends to the keys that its row of a list names, against a dense computation that gathers them by plain indexing."""

import inspect
import math

import pytest
import scoremod
import torch
from scoremod.torch import explain, flex_attention, fused_attention, support
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask

EVEN = {"enable_gqa": True}
SHAPES = {"gqa": (2, 4, 2, 3, 50, 12, 16, 8), "mha": (3, 2, 2, 1, 9, 30, 8, 8), "mqa, many": (1, 8, 1, 17, 200, 64, 32, 32)}


def drawn(random, shape, dtype=torch.float32):
    """(q, k, v, list): a list with repeats, with rows of few keys, with entries of none between others, and with one row of none."""
    batch, heads, heads_kv, queries, tokens, entries, dim, dim_v = shape
    q, k, v = (
        torch.randn(*size, generator=random).to(dtype)
        for size in ((batch, heads, queries, dim), (batch, heads_kv, tokens, dim), (batch, heads_kv, tokens, dim_v))
    )
    listed = torch.randint(-tokens // 4, tokens, (batch, queries, entries), generator=random)
    listed[..., 3] = listed[..., 0]
    listed[:, 0, entries // 2 :] = -1
    listed[-1, -1] = -1
    return q, k, v, listed


def modified(bias, slopes):
    """A soft cap, a table of keys, one of queries, and what depends on positions, batches and heads."""

    def score_mod(score, b, h, q_idx, kv_idx):
        return 5 * torch.tanh(score / 5) + bias[kv_idx] + slopes[b, h] * (kv_idx - q_idx)

    return score_mod


def kept(b, h, q_idx, kv_idx):
    return (kv_idx + 2 * q_idx + h + b) % 5 != 1


def dense(q, k, v, listed, score_mod=None, mask_mod=None, sink=None):
    """(o, lse) in float64: the listed keys of each query, in memory of their own."""
    q, k, v = q.double(), *(x.double().repeat_interleave(q.shape[1] // x.shape[1], 1).expand(q.shape[0], -1, -1, -1) for x in (k, v))
    listed = listed.long().expand(q.shape[0], -1, -1)
    b, h, i = (torch.arange(n).view([-1 if d == at else 1 for d in range(4)]) for at, n in enumerate(q.shape[:3]))
    j = listed.clamp(min=0)[:, None]
    scores = (k[b, h, j] * q[:, :, :, None]).sum(-1) / math.sqrt(q.shape[-1])
    scores = scores if score_mod is None else score_mod(scores, b, h, i, j)
    keep = (listed >= 0)[:, None] if mask_mod is None else (listed >= 0)[:, None] & mask_mod(b, h, i, j)
    # The terms of masked scores are 0, and so are their derivatives.
    terms = torch.where(keep, scores, 0).exp() * keep
    total = terms.sum(-1) + (0 if sink is None else sink.double().exp()[:, None])
    o = ((terms / torch.where(total == 0, 1, total)[..., None])[..., None] * v[b, h, j]).sum(-2)
    return o, torch.where(total == 0, -math.inf, torch.where(total == 0, 1, total).log())


def close(found, expected, tolerance=2e-5):
    scale = max(1.0, expected[expected.isfinite()].abs().max().item() if expected.isfinite().any() else 1.0)
    torch.testing.assert_close(found.double(), expected.double(), rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_agrees_with_the_gathered_keys(shape, dtype, random):
    q, k, v, listed = drawn(random, shape, dtype)
    bias, slopes = torch.randn(shape[4], generator=random), torch.randn(shape[0], shape[1], generator=random) / shape[4]
    expected, expected_lse = dense(q, k, v, listed, modified(bias, slopes), kept)
    o, lse = flex_attention(q, k, v, modified(bias, slopes), mask_mod=kept, token_list=listed, return_lse=True, **EVEN)
    close(o, expected, 2e-5 if dtype == torch.float32 else 2e-2)
    close(lse, expected_lse, 2e-5 if dtype == torch.float32 else 2e-2)
    assert o.dtype == dtype and (o[-1, :, -1] == 0).all() and (lse[-1, :, -1] == -math.inf).all()
    plain, plain_lse = flex_attention(q, k, v, token_list=listed, return_lse=True, **EVEN)
    expected, expected_lse = dense(q, k, v, listed)
    close(plain, expected, 2e-5 if dtype == torch.float32 else 2e-2)
    close(plain_lse, expected_lse, 2e-5 if dtype == torch.float32 else 2e-2)


@pytest.mark.parametrize("road", ["eager", "compiled"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_gradients_add_up_over_repeats(shape, road, random):
    torch._dynamo.reset()
    *tensors, listed = drawn(random, shape)
    leaves = [*tensors, torch.randn(shape[4], generator=random), torch.randn(shape[0], shape[1], generator=random) / shape[4]]
    leaves = [each.requires_grad_() for each in leaves]
    weights = torch.randn(*tensors[0].shape[:3], shape[7], generator=random)

    def loss(attend, q, k, v, bias, slopes):
        o, lse = attend(q, k, v, modified(bias, slopes))
        return (o * weights).sum() + torch.where(lse == -math.inf, 0, lse).sin().sum()

    def ours(q, k, v, score_mod):
        return flex_attention(q, k, v, score_mod, mask_mod=kept, token_list=listed, return_lse=True, **EVEN)

    run = loss if road == "eager" else torch.compile(loss, backend="aot_eager")
    found = torch.autograd.grad(run(ours, *leaves), leaves)
    expected = torch.autograd.grad(loss(lambda *given: dense(*given[:3], listed, given[3], kept), *leaves), leaves)
    for one, other in zip(found, expected, strict=True):
        assert other.abs().sum() > 0
        close(one, other, 1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("road", ["list", "pages", "mixed batch", "compiled"])
def test_gradients_of_keys_that_many_queries_name(road, dtype, random):
    """A sum of so many terms in 16 bits would lose most of them."""
    torch._dynamo.reset()
    q, k, v = (torch.randn(1, 2, length, 16, generator=random).to(dtype) for length in (1500, 8, 8))
    listed = torch.rand(1, 1500, 8, generator=random).argsort(-1)
    pages = {"page_table": torch.tensor([[2, 0]]).expand(1500, 2), "lengths": torch.full((1500,), 8)}

    def run(k, v):
        if road in ("list", "compiled"):
            return flex_attention(q, k, v, token_list=listed)
        k, v = (each.reshape(2, 2, 4, 16).transpose(0, 1).index_select(0, torch.tensor([1, 0, 0])) for each in (k, v))
        if road == "pages":
            return flex_attention(q.transpose(0, 2), k, v, **pages).transpose(0, 2)
        return flex_attention(q[0].transpose(0, 1), k, v, q_offsets=torch.arange(1501), **pages).transpose(0, 1)[None]

    k, v = k.requires_grad_(), v.requires_grad_()
    run = torch.compile(run, backend="aot_eager") if road == "compiled" else run
    for one, other in zip(*(torch.autograd.grad(each.double().sum(), (k, v)) for each in (run(k, v), dense(q, k, v, listed)[0])), strict=True):
        close(one, other, 1e-2)


def test_latent_cache_of_one_memory(random):
    """128 query heads over one KV head, whose values are the first dims of its keys: both stay one memory."""
    from scoremod.torch import token_lists

    q, cache = torch.randn(1, 128, 2, 576, generator=random), torch.randn(1, 300, 576, generator=random)
    cache.requires_grad_()
    listed = torch.randint(-60, 300, (1, 2, 128), generator=random)
    k = cache[:, None]
    assert [token_lists._tokens(each, 1).data_ptr() for each in (k, k[..., :512])] == [cache.data_ptr()] * 2
    o = flex_attention(q, k, k[..., :512], token_list=listed, scale=0.04, **EVEN)
    expected, _ = dense(q * (0.04 * 24), k, k[..., :512], listed)
    close(o, expected)
    for one, other in zip(*(torch.autograd.grad(each.square().sum(), cache, retain_graph=True) for each in (o, expected)), strict=True):
        close(one, other, 1e-4)
    with torch.no_grad():
        close(flex_attention(q, k, k[..., :512], token_list=listed, scale=0.04, **EVEN), expected)


def test_sink_and_largest_scores(random):
    q, k, v, listed = drawn(random, SHAPES["gqa"])
    sink = torch.randn(4, generator=random)
    o, lse = flex_attention(q, k, v, token_list=listed, sink=sink, return_lse=True, **EVEN)
    expected, expected_lse = dense(q, k, v, listed, sink=sink)
    close(o, expected)
    close(lse, expected_lse)
    assert torch.equal(lse[-1, :, -1], sink)
    o, aux = flex_attention(q, k, v, token_list=listed, return_aux=AuxRequest(lse=True, max_scores=True), **EVEN)
    largest = torch.einsum("bhqd,bhkd->bhqk", q, k.repeat_interleave(2, 1)) / 4
    largest = largest.gather(3, listed.clamp(min=0)[:, None].expand(-1, 4, -1, -1)).masked_fill((listed < 0)[:, None], -math.inf).amax(-1)
    close(aux.max_scores, largest)
    close(aux.lse, dense(q, k, v, listed)[1])


def test_positions_and_lengths(random):
    """They mean what they do without a list."""
    q, k, v, listed = drawn(random, SHAPES["gqa"])
    of_queries, of_keys = torch.tensor([3, 1]), torch.tensor([20, 37])
    cases = [
        ({"mask_mod": "causal"}, lambda b, h, i, j: j <= i),
        ({"mask_mod": "causal_bottom_right"}, lambda b, h, i, j: j <= i + 47),
        ({"mask_mod": "causal_bottom_right", "lengths": of_keys}, lambda b, h, i, j: j <= i + of_keys[b] - 3),
        ({"mask_mod": kept, "q_start": 20}, lambda b, h, i, j: kept(b, h, i + 20, j)),
        ({"mask_mod": kept, "q_start": torch.tensor([20, 3])}, lambda b, h, i, j: kept(b, h, i + torch.tensor([20, 3])[b], j)),
        ({"lengths": (of_queries, of_keys)}, lambda b, h, i, j: (i < of_queries[b]) & (j < of_keys[b])),
        ({"block_mask": create_block_mask(lambda b, h, i, j: j <= 9 * i, None, None, 3, 50, device="cpu")}, lambda b, h, i, j: j <= 9 * i),
    ]
    for options, mask_mod in cases:
        listed[0, 0, :2] = torch.tensor([0, 1])
        expected, expected_lse = dense(q, k, v, listed, mask_mod=mask_mod)
        o, lse = flex_attention(q, k, v, token_list=listed, return_lse=True, **options, **EVEN)
        close(o, expected)
        close(lse, expected_lse)
        assert o.abs().sum() > 0


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32])
def test_narrow_entries_reach_into_more_keys_than_they_count(dtype, random):
    q, k, v, _ = drawn(random, (2, 4, 2, 3, 300, 12, 16, 8))
    info = torch.iinfo(dtype)
    listed = torch.randint(max(info.min, -9), min(info.max, 299) + 1, (2, 3, 12), generator=random).to(dtype)
    close(flex_attention(q, k, v, token_list=listed, **EVEN), dense(q, k, v, listed)[0])


def test_any_strides_and_one_batch_for_all(random):
    q, k, v, listed = drawn(random, SHAPES["gqa"])
    spread = torch.full((2, 3, 12, 2), 10**6).transpose(1, 2)[..., 0].transpose(1, 2)
    spread.copy_(listed)
    assert not spread.is_contiguous()
    for keys in (k, k.transpose(1, 2).contiguous().transpose(1, 2), k.mT.contiguous().mT, torch.randn(2, 2, 100, 16, generator=random)[:, :, ::2]):
        close(flex_attention(q, keys, v, token_list=spread, **EVEN), dense(q, keys, v, listed)[0])
    close(flex_attention(q, k, v, token_list=listed[:1], **EVEN), dense(q, k, v, listed[:1])[0])
    for keys, values in ((k[:1], v[:1]), (k[:1], v), (k, v[:1])):
        close(flex_attention(q, keys, values, token_list=listed, **EVEN), dense(q, keys, values, listed)[0])
    wide = torch.where(listed < 0, -(2**40), listed)
    close(flex_attention(q, k, v, token_list=wide, **EVEN), dense(q, k, v, listed)[0])


def test_keys_that_no_entry_names_are_never_read(random):
    q, k, v, listed = drawn(random, SHAPES["gqa"])
    listed = torch.where(listed < 10, -1, listed)
    expected = dense(q, k, v, listed)[0]
    k[:, :, :10], v[:, :, :10] = math.nan, math.nan
    close(flex_attention(q, k, v, token_list=listed, **EVEN), expected)
    found = torch.autograd.grad(flex_attention(q, k.requires_grad_(), v, token_list=listed, **EVEN).square().sum(), k)[0]
    assert found.isfinite().all() and (found[:, :, :10] == 0).all()


def test_sizes_of_0(random):
    q, k, v, listed = drawn(random, SHAPES["gqa"])
    for q_, k_, v_, listed_ in (
        (q, k, v, listed[..., :0]),
        (q[:, :, :0], k, v, listed[:, :0]),
        (q, k[:, :, :0], v[:, :, :0], torch.full_like(listed, -1)),
        (q[:0], k[:0], v[:0], listed[:0]),
    ):
        leaf = q_.clone().requires_grad_()
        for query in (q_, leaf):
            o, lse = flex_attention(query, k_, v_, token_list=listed_, return_lse=True, **EVEN)
            assert o.shape == (*q_.shape[:3], 8) and (o == 0).all() and lse.shape == q_.shape[:3] and (lse == -math.inf).all()
        assert (torch.autograd.grad(o.sum(), leaf)[0] == 0).all()


def test_outputs_of_the_caller(random):
    q, k, v, listed = drawn(random, SHAPES["gqa"])
    expected = dense(q, k, v, listed)[0]
    with torch.no_grad():
        for out in (torch.empty(2, 4, 3, 8), torch.empty(2, 3, 4, 8).transpose(1, 2)):
            o, _ = flex_attention(q, k, v, token_list=listed, out=out, return_lse=True, **EVEN)
            assert o is out
            close(out, expected)
        for wrong in (torch.empty(2, 4, 4, 8), torch.empty(2, 4, 3, 8, dtype=torch.bfloat16)):
            with pytest.raises(scoremod.InvalidArgumentError, match=r"out: expected float32 of shape \(2, 4, 3, 8\)"):
                flex_attention(q, k, v, token_list=listed, out=wrong, **EVEN)


def test_float8_cache(random):
    q, k, v, listed = drawn(random, SHAPES["gqa"])
    k8, v8 = ((each / 0.02).to(torch.float8_e4m3fn) for each in (k, v))
    o = flex_attention(q, k8, v8, token_list=listed, descale_k=0.02, descale_v=0.02, **EVEN)
    close(o, dense(q, k8.float() * 0.02, v8.float() * 0.02, listed)[0])


def test_dropout_is_of_each_entry(random, seed):
    q, k, v, listed = drawn(random, (2, 4, 2, 40, 50, 64, 16, 8))
    listed = listed.clamp(min=0)
    results = []
    for learned in (False, True):
        torch.manual_seed(seed)
        results.append(flex_attention(q, k, torch.ones_like(v).requires_grad_(learned), token_list=listed, dropout_p=0.25, **EVEN).detach())
    torch.testing.assert_close(*results)
    assert abs(results[0].mean() - 1) < 0.05 and results[0].std() > 0.01


@pytest.mark.parametrize("road", ["vmap", "grad", "compile"])
def test_transformations(road, random):
    torch._dynamo.reset()
    q, k, v, listed = drawn(random, SHAPES["gqa"])

    def run(q, listed):
        return flex_attention(q, k, v, mask_mod=kept, token_list=listed, **EVEN)

    if road == "vmap":
        found = torch.vmap(run)(torch.stack([q, 2 * q]), torch.stack([listed, listed.flip(1)]))
        for each, queries, of_queries in zip(found, (q, 2 * q), (listed, listed.flip(1)), strict=True):
            close(each, dense(queries, k, v, of_queries, mask_mod=kept)[0])
    elif road == "grad":
        found = torch.func.grad(lambda q: run(q, listed).square().sum())(q)
        close(found, torch.func.grad(lambda q: dense(q, k, v, listed, mask_mod=kept)[0].square().sum())(q))
    else:
        compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
        close(compiled(q, listed), dense(q, k, v, listed, mask_mod=kept)[0])
        for _ in range(2):
            with pytest.raises(ValueError, match="token_list: expected entries below 50"):
                compiled(q, listed + 40)


def test_exported_and_in_other_layouts(random):
    q, k, v, listed = drawn(random, SHAPES["gqa"])
    expected = dense(q, k, v, listed)[0]

    class Attention(torch.nn.Module):
        def forward(self, q, k, v, listed):
            return flex_attention(q, k, v, token_list=listed, **EVEN)

    close(torch.export.export(Attention(), (q, k, v, listed)).module()(q, k, v, listed), expected)
    o = fused_attention(*(x.transpose(1, 2) for x in (q, k, v)), layout="BSHD", token_list=listed)
    close(o.transpose(1, 2), expected)
    with torch.autocast("cpu", torch.bfloat16):
        o = flex_attention(q, k, v, token_list=listed, **EVEN)
    assert o.dtype == torch.bfloat16
    close(o, expected, 3e-2)


@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.parametrize("road", ["eager", "compiled"])
def test_other_sizes_compile_nothing(road, random):
    torch._dynamo.reset()
    scale = 1 + torch.rand(1, generator=random).item()

    def attend(q, k, v, listed, of_keys, of_queries):
        def score_mod(score, b, h, q_idx, kv_idx):
            return score * scale + of_keys[kv_idx] + of_queries[b, q_idx]

        return flex_attention(q, k, v, score_mod, mask_mod=kept, token_list=listed, **EVEN), dense(q, k, v, listed, score_mod, kept)[0]

    run = attend if road == "eager" else torch.compile(attend, backend="aot_eager", dynamic=True)
    before = scoremod.cache.statistics()["compiled"]["problems"]
    with torch.no_grad():
        for batch, queries, tokens, entries in ((2, 3, 50, 12), (2, 4, 50, 12), (3, 4, 61, 13), (3, 7, 300, 64), (4, 2, 77, 5), (7, 2, 40, 17)):
            q, k, v, listed = drawn(random, (batch, 4, 2, queries, tokens, entries, 16, 16))
            tables = torch.randn(tokens, generator=random), torch.randn(batch, queries, generator=random)
            close(*run(q, k, v, listed, *tables))
    assert scoremod.cache.statistics()["compiled"]["problems"] - before == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"page_table": torch.zeros(2, 3, dtype=torch.int32)}, "token_list: expected no page_table beside it, found one; give"),
        ({"q_offsets": torch.tensor([0, 3])}, "token_list: expected no q_offsets beside it, found one; give"),
        ({"kv_offsets": torch.tensor([0, 3])}, "token_list: expected no kv_offsets beside it, found one; give"),
        ({"max_length": 3}, "token_list: expected no max_length beside it, found one; leave"),
        ({"offsets": scoremod.Offsets(query=3)}, "token_list: expected no offsets beside it, found .*; give q_start="),
        ({"lengths": torch.tensor([51, 3])}, "lengths: expected lengths of keys from 0 to 50"),
        ({"lengths": torch.tensor([5])}, r"lengths: expected an int32 or int64 tensor of shape \(2,\)"),
        ({"q_start": -1}, "q_start: expected a 32-bit integer from 0 on"),
        ({"score_mod": 5}, "score_mod: expected a function, found 5"),
        ({"mask_mod": torch.ones(3, 50)}, r"mask_mod: expected a function, found a tensor of shape \(3, 50\)"),
        ({"enable_gqa": False}, "key: expected the number of heads of query, 4, found 2"),
        ({"block_mask": create_block_mask(kept, None, None, 3, 12, device="cpu")}, "block_mask was created for a smaller length"),
        ({"token_list": torch.zeros(2, 3)}, r"token_list: expected signed integers or uint8 .* found torch.float32 of shape \(2, 3\)"),
        ({"token_list": torch.zeros(2, 3, 12, dtype=torch.bool)}, "token_list: expected signed integers or uint8 .* found torch.bool"),
        ({"token_list": torch.zeros(2, 2, 12, dtype=torch.int32)}, r"token_list: .* of shape \(2, 3, any\) .* found torch.int32 of shape \(2, 2, 12\)"),
        ({"token_list": torch.zeros(3, 3, 12, dtype=torch.int32)}, r"token_list: .* of shape \(2, 3, any\) .* found torch.int32 of shape \(3, 3, 12\)"),
        ({"token_list": torch.zeros(2, 3, 12, dtype=torch.int32, device="meta")}, "token_list: .* on cpu, where query is, .* on meta"),
        ({"token_list": [[[0]]]}, "token_list: expected signed integers or uint8 .* found list"),
        ({"token_list": torch.full((2, 3, 12), 50)}, r"token_list: expected entries below 50, the number of keys, found 50 at \[0, 0, 0\]"),
        ({"token_list": torch.full((2, 3, 12), 2**32)}, "token_list: expected entries below 50, the number of keys, found 4294967296"),
        ({"value": torch.zeros(2, 2, 12, 8)}, "value: expected 1 or 2 batches, as query has, of key's 50 tokens"),
        ({"query": torch.zeros(3, 4, 16)}, "query: expected 4 dimensions"),
        ({"topk_indices": torch.zeros(2, 3, 12)}, "topk_indices: flex_attention.. expected no such argument, found one; give token_list="),
    ],
)
def test_what_is_wrong_is_refused(options, message, random):
    q, k, v, listed = drawn(random, SHAPES["gqa"])
    takes_all = options.keys() <= inspect.signature(explain).parameters.keys()
    for attend in [flex_attention, flex_attention, *[explain, support] * takes_all]:
        with pytest.raises(scoremod.InvalidArgumentError, match=message):
            attend(**{"query": q, "key": k, "value": v, "token_list": listed, **EVEN, **options})
