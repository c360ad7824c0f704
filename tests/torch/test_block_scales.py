"""FP8 tensors with block scales (MXFP8, and scales of rows): against dense float64 attention to the scaled values, and calls that are refused."""

import dense_reference as dense
import pytest
import torch
from torch.nn.attention.flex_attention import AuxRequest

import scoremod
from scoremod.torch import eager_calls, flex_attention

BATCH, HEADS, HEADS_KV, QUERIES, KEYS, DIM = 2, 4, 2, 37, 70, 64
BLOCK = 32
# (elements of the sequence, elements of the head dim) that share a scale; None for all.
SHARED = {"blocks of dims": (1, BLOCK), "blocks of keys": (BLOCK, 1), "rows": (1, None), "heads": (None, None), "elements": (1, 1)}


@pytest.fixture(autouse=True)
def afresh(monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setattr(eager_calls, "_kept", {})


def quantized(x, rows, dims, dtype=torch.float8_e4m3fn, scale_dtype=torch.float32):
    """(x as FP8 numbers, their scales): each block has the scale that brings its largest number to the dtype's, as a quantiser would choose it."""
    sizes = [size or whole for size, whole in zip((rows, dims), x.shape[-2:])]
    blocks = [torch.arange(whole) // size for whole, size in zip(x.shape[-2:], sizes)]
    largest = torch.zeros(*x.shape[:-2], int(blocks[0][-1]) + 1, int(blocks[1][-1]) + 1, dtype=torch.float64)
    for row, of_row in enumerate(blocks[0]):
        for dim, of_dim in enumerate(blocks[1]):
            largest[..., of_row, of_dim] = torch.maximum(largest[..., of_row, of_dim], x[..., row, dim].abs().double())
    scales = (largest / torch.finfo(dtype).max).float()
    if scale_dtype != torch.float32:  # powers of two, not below
        scales = torch.exp2(torch.ceil(torch.log2(scales))).to(scale_dtype)
    whole = scales.float()[..., blocks[0], :][..., blocks[1]]
    return (x / whole).to(dtype), scales


def values(x, scales):
    """The float64 values of FP8 numbers with block scales, by their definition."""
    whole = scales.double()
    for axis in (-2, -1):
        size, extent = x.shape[axis], scales.shape[axis]
        place = torch.arange(size) // BLOCK if extent not in (1, size) else torch.arange(size) % extent
        whole = whole.index_select(axis, place)
    return x.double() * whole


def draw(random, shared, dtype=torch.float8_e4m3fn, scale_dtype=torch.float32, query_dtype=None):
    """(tensors, descales by name, their float64 values)."""
    shapes = (BATCH, HEADS, QUERIES, DIM), (BATCH, HEADS_KV, KEYS, DIM), (BATCH, HEADS_KV, KEYS, DIM)
    # Rows and dims of very different sizes, which one scale would flush to zero.
    drawn = [torch.randn(shape, generator=random) * torch.exp2(torch.randint(-6, 3, (*shape[:-1], 1), generator=random)) for shape in shapes]
    tensors, descales, truth = [], {}, []
    for name, x in zip(("descale_q", "descale_k", "descale_v"), drawn):
        if name == "descale_q" and query_dtype is not None:
            tensors.append(x.to(query_dtype))
            truth.append(tensors[-1].double())
            continue
        numbers, scales = quantized(x, *shared, dtype, scale_dtype)
        tensors.append(numbers)
        descales[name] = scales
        truth.append(values(numbers, scales))
    return tensors, descales, truth


def score_mod(score, b, h, q_idx, kv_idx):
    return 4 * torch.tanh(score / 4)


def causal(b, h, q_idx, kv_idx):
    return kv_idx <= q_idx + 33


def expect_close(found, truth, eps=1e-5):
    assert (found.double() - truth).abs().max() <= eps * max(float(truth.abs().max()), 1)


@pytest.mark.parametrize("shared", SHARED.values(), ids=SHARED)
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_it_is_attention_of_the_values(dtype, shared, random):
    tensors, descales, truth = draw(random, shared, dtype)
    o, aux = flex_attention(*tensors, score_mod, mask_mod=causal, **descales, out_dtype=torch.float32, enable_gqa=True, return_aux=AuxRequest(lse=True))
    expected, lse = dense.attention_and_lse(*truth, score_mod, causal)
    expect_close(o, expected)
    expect_close(aux.lse, lse)


@pytest.mark.parametrize("shared", SHARED.values(), ids=SHARED)
def test_a_cache_has_them_under_a_wider_query(shared, random):
    tensors, descales, truth = draw(random, shared, query_dtype=torch.float32)
    expect_close(flex_attention(*tensors, score_mod, mask_mod=causal, **descales, enable_gqa=True), dense.attention_and_lse(*truth, score_mod, causal)[0])


def test_mxfp8_scales_are_powers_of_two_in_eight_bits(random):
    tensors, descales, truth = draw(random, SHARED["blocks of dims"], scale_dtype=torch.float8_e8m0fnu)
    assert descales["descale_k"].shape == (BATCH, HEADS_KV, KEYS, DIM // BLOCK)
    o = flex_attention(*tensors, score_mod, **descales, out_dtype=torch.float32, enable_gqa=True)
    expect_close(o, dense.attention_and_lse(*truth, score_mod)[0])


@pytest.mark.parametrize("shared", SHARED.values(), ids=SHARED)
def test_captured_tensors_have_gradients(shared, random):
    tensors, descales, truth = draw(random, shared)
    cap = torch.tensor(3.0, requires_grad=True)
    bound = lambda score, b, h, q_idx, kv_idx: cap * torch.tanh(score / cap)  # noqa: E731
    o, aux = flex_attention(*tensors, bound, **descales, out_dtype=torch.float32, enable_gqa=True, return_aux=AuxRequest(lse=True))
    upstreams = [torch.randn(each.shape, generator=random) for each in (o, aux.lse)]
    exact = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    of_truth = lambda score, b, h, q_idx, kv_idx: exact * torch.tanh(score / exact)  # noqa: E731
    of_dense = dense.attention_and_lse(*truth, of_truth)
    for wanted in ((0,), (1,), (0, 1)):
        cap.grad = exact.grad = None
        sum(((o, aux.lse)[i] * upstreams[i]).sum() for i in wanted).backward(retain_graph=True)
        sum((of_dense[i] * upstreams[i].double()).sum() for i in wanted).backward(retain_graph=True)
        torch.testing.assert_close(cap.grad.double(), exact.grad, rtol=1e-3, atol=1e-4)


def test_varlen_sequences_have_those_of_their_tokens(random):
    offsets = torch.tensor([0, 29, 29, 70], dtype=torch.int32)
    x = torch.randn(3, 70, HEADS_KV, DIM, generator=random).movedim(2, 1)
    numbers, scales = zip(*(quantized(each, BLOCK, 1) for each in x))
    truth = [values(*each) for each in zip(numbers, scales)]
    query, key, value = (each.movedim(0, 1) for each in numbers)
    descales = {f"descale_{name}": each.movedim(0, 1) for name, each in zip("qkv", scales)}
    o = flex_attention(query, key, value, score_mod, q_offsets=offsets, kv_offsets=offsets, **descales, out_dtype=torch.float32)
    for first, end in zip(offsets[:-1].tolist(), offsets[1:].tolist()):
        if first < end:
            expected, _ = dense.attention_and_lse(*(each[None, :, first:end] for each in truth), score_mod)
            expect_close(o[first:end].movedim(0, 1), expected[0])


def test_pages_have_those_of_their_blocks(random):
    (query, key, value), descales, truth = draw(random, SHARED["rows"], query_dtype=torch.bfloat16)
    page, lengths = 16, torch.tensor([70, 41], dtype=torch.int32)
    pages = -(-KEYS // page)
    table = torch.randperm(BATCH * pages + 1, generator=random)[: BATCH * pages].reshape(BATCH, pages).to(torch.int32)

    def paged(x):
        padded = torch.nn.functional.pad(x.float(), (0, 0, 0, pages * page - KEYS)).to(x.dtype)
        pool = torch.zeros(BATCH * pages + 1, HEADS_KV, page, x.shape[-1], dtype=x.dtype)
        for b in range(BATCH):
            for number in range(pages):
                pool[table[b, number]] = padded[b, :, number * page : (number + 1) * page]
        return pool

    options = {name: paged(scales) for name, scales in descales.items()}
    assert options["descale_k"].shape == (BATCH * pages + 1, HEADS_KV, page, 1)
    o = flex_attention(query, paged(key), paged(value), score_mod, page_table=table, lengths=lengths, **options, enable_gqa=True)
    for b, length in enumerate(lengths.tolist()):
        expected, _ = dense.attention_and_lse(truth[0][b : b + 1], *(each[b : b + 1, :, :length] for each in truth[1:]), score_mod)
        expect_close(o[b : b + 1], expected, torch.finfo(torch.bfloat16).eps)


@pytest.mark.parametrize("query_dtype", [None, torch.float32])
@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("shared", SHARED.values(), ids=SHARED)
def test_token_lists_read_those_of_their_tokens(shared, is_shared, query_dtype, random):
    tensors, descales, truth = draw(random, shared, query_dtype=query_dtype)
    if is_shared:  # by all batches
        tensors[1:], truth[1:] = ([each[:1] for each in part] for part in (tensors[1:], truth[1:]))
        descales |= {name: descales[name][:1] for name in ("descale_k", "descale_v")}
    listed = torch.stack([torch.randperm(KEYS, generator=random)[:9] for _ in range(BATCH * QUERIES)]).reshape(BATCH, QUERIES, 9)
    listed[0, 0, 3:] = -1
    options = {} if query_dtype is not None else {"out_dtype": torch.float32}
    o = flex_attention(*tensors, score_mod, token_list=listed, **descales, **options, enable_gqa=True)
    keep = torch.zeros(BATCH, QUERIES, KEYS, dtype=torch.bool).scatter_(2, listed.clamp(min=0), listed >= 0)
    keep[0, 0] = False
    keep[0, 0, listed[0, 0, :3]] = True
    whole = [truth[0], *(each.expand(BATCH, -1, -1, -1) for each in truth[1:])]
    expect_close(o, dense.attention_and_lse(*whole, score_mod, lambda b, h, q_idx, kv_idx: keep[b, q_idx, kv_idx])[0])


def test_other_scales_and_sizes_compile_nothing(random, monkeypatch):
    def run(keys):
        query, key, value = (torch.randn(1, HEADS, keys, DIM, generator=random) for _ in range(3))
        (key, k_scale), (value, v_scale) = (quantized(each, 1, BLOCK) for each in (key, value))
        o = flex_attention(query, key, value, score_mod, descale_k=k_scale, descale_v=v_scale)
        expect_close(o, dense.attention_and_lse(query.double(), values(key, k_scale), values(value, v_scale), score_mod)[0])

    run(40)
    monkeypatch.setattr(scoremod.torch.execution, "OpenAttention", None)
    for keys in (40, 41, 96, 7):
        run(keys)


def test_scales_that_fit_no_blocks_are_refused(random):
    tensors, descales, _ = draw(random, SHARED["rows"])
    for shape in ((BATCH, HEADS_KV, KEYS, 3), (BATCH, HEADS_KV, 2, 1), (3, HEADS_KV, KEYS, 1), (KEYS, 1), (BATCH, HEADS_KV, KEYS, 1, 1)):
        with pytest.raises(scoremod.InvalidArgumentError, match=r"descale_k: expected .*block scales \[2 or 1, 2 or 1, 70 or 3 or 1, 64 or 2 or 1\], found"):
            flex_attention(*tensors, **descales | {"descale_k": torch.ones(shape)}, enable_gqa=True)
    with pytest.raises(scoremod.InvalidArgumentError, match="descale_v: expected a positive number"):
        flex_attention(*tensors, **descales | {"descale_v": torch.ones(BATCH, HEADS_KV, KEYS, 1, dtype=torch.int32)}, enable_gqa=True)


def test_scales_of_other_blocks_are_seen(random):
    """A negative control of these tests' tolerance."""
    tensors, descales, truth = draw(random, SHARED["blocks of keys"])
    wrong = descales | {"descale_v": descales["descale_v"].roll(1, -2)}
    o = flex_attention(*tensors, score_mod, **wrong, out_dtype=torch.float32, enable_gqa=True)
    with pytest.raises(AssertionError):
        expect_close(o, dense.attention_and_lse(*truth, score_mod)[0])
