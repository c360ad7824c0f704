"""flex_attention on a GPU against dense attention in float64, and inside what PyTorch has for GPUs."""

import dense_reference as dense
import modifiers
import pytest
import torch
from torch._dynamo.utils import counters
from torch.nn.attention import flex_attention as torch_flex

import scoremod
from scoremod.torch import flex_attention

B, H, S, D = 2, 4, 256, 64


def fused(q, k, v, score_mod, mask_mod, **options):
    return flex_attention(q, k, v, score_mod, mask_mod=mask_mod, return_lse=True, enable_gqa=True, **options)


def tensors(random, dtype=torch.bfloat16, heads_kv=2):
    return [torch.randn(B, heads, S, D, generator=random).to("cuda", dtype) for heads in (H, heads_kv, heads_kv)]


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", modifiers.NAMES)
def test_output_and_gradients(name, dtype, random):
    captured, make = modifiers.cases((B, H, S, S), random, "cuda")[name]
    dense.check(fused, tensors(random, dtype), captured, make, random)


def test_views_that_begin_anywhere_are_taken(random):
    """In memory that begins 4 bytes, and 2, behind a multiple of 16: with the rows of a sharded parameter, say."""
    wide = [torch.randn(B, heads, S, D + 8, generator=random).to("cuda", torch.bfloat16) for heads in (H, 2, 2)]
    all_slopes = torch.randn(2 * H + 1, generator=random).cuda()
    for first in (1, 0):
        q, k, v = (x[..., first : first + D].detach().requires_grad_() for x in wide)
        slopes = all_slopes[1 + first : 1 + first + H].detach().requires_grad_()

        found, expected = [], []
        for x, copied in ((found, False), (expected, True)):
            leaves = [each.detach().clone().requires_grad_() if copied else each for each in (q, k, v, slopes)]
            o, _ = fused(*leaves[:3], lambda *at, slopes=leaves[3]: at[0] + slopes[at[2]] * (at[4] - at[3]), causal, deterministic=True)
            x += [o, *torch.autograd.grad(o.float().square().sum(), leaves)]
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)


def test_deterministic_gradients_are_the_same_bits(random):
    q, k, v = (x.requires_grad_() for x in tensors(random))
    slopes = torch.randn(H, generator=random).cuda().requires_grad_()

    def gradients():
        o, _ = fused(q, k, v, lambda score, b, h, q_idx, kv_idx: score + slopes[h] * kv_idx, causal, deterministic=True)
        return torch.autograd.grad(o.float().square().sum(), (q, k, v, slopes))

    assert all(map(torch.equal, gradients(), gradients()))


def test_the_current_stream_is_used(random):
    """Attention on a side stream waits for the work that the stream has before it."""
    q, k, v = tensors(random)
    expected, _ = fused(q, k, v, None, causal)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        late = torch.zeros_like(q)
        torch.cuda._sleep(200_000_000)
        late.copy_(q)
        found, _ = fused(late, k, v, None, causal)
    torch.cuda.current_stream().wait_stream(side)
    assert torch.equal(found, expected)


def test_a_cuda_graph_replays_it(random):
    q, k, v = (x.requires_grad_() for x in tensors(random))

    def step():
        o, _ = fused(q, k, v, None, causal)
        return o, *torch.autograd.grad(o.float().square().sum(), (q, k, v))

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = step()
    with torch.no_grad():
        q.copy_(torch.randn(q.shape, generator=random))
    graph.replay()
    torch.cuda.synchronize()
    for found, expected in zip(recorded, step()):
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


def test_one_graph_of_reduce_overhead_serves_growing_lengths(random):
    """torch.compile captures the step once: lengths and positions are numbers in tensors, and the cache has room."""
    torch._dynamo.reset()
    counters.clear()
    _, keys, values = tensors(random)
    slopes = torch.randn(H, generator=random).cuda()

    def attend(query, cached):
        def alibi(score, b, h, q_idx, kv_idx):
            return score + slopes[h] * (kv_idx - q_idx)

        return flex_attention(query, keys, values, alibi, mask_mod=causal, lengths=cached, q_start=cached - 1, enable_gqa=True)

    def dense_step(query, keys, values, cached):
        def alibi(score, b, h, q_idx, kv_idx):
            return score + slopes.to(score)[h] * (kv_idx - (cached[b] - 1))

        return dense.attention_and_lse(query, keys, values, alibi, lambda b, h, q_idx, kv_idx: kv_idx < cached[b])[0]

    step = torch.compile(attend, mode="reduce-overhead", fullgraph=True)
    with torch.inference_mode():
        for longest in (1, 2, 63, 64, 65, S):
            query = torch.randn(B, H, 1, D, generator=random).to("cuda", torch.bfloat16)
            cached = torch.tensor([longest, max(1, longest - 7)], device="cuda")
            torch.compiler.cudagraph_mark_step_begin()
            found = step(query, cached).clone()
            plain, truth = (dense_step(*each, cached) for each in ((query, keys, values), dense.widened((query, keys, values))))
            dense.assert_close([found], [plain], [truth])
    assert counters["inductor"]["cudagraph_skips"] == 0 and counters["stats"]["unique_graphs"] == 1


def test_inductor(random):
    q, k, v = (x.requires_grad_() for x in tensors(random))
    slopes = torch.randn(H, generator=random).cuda().requires_grad_()

    def function(q, k, v):
        return fused(q * 1.5, k, v, lambda score, b, h, q_idx, kv_idx: score + slopes[h] * (kv_idx - q_idx), causal)[0]

    results = []
    for run in (torch.compile(function, fullgraph=True), function):
        o = run(q, k, v)
        results.append([o, *torch.autograd.grad(o.float().square().mean(), (q, k, v, slopes))])
    for found, expected in zip(*results):
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("name", ["alibi", "soft_cap", "documents", "several"])
def test_it_is_no_worse_than_torchs_own_compiled(name, random):
    captured, make = modifiers.cases((B, H, S, S), random, "cuda")[name]
    score_mod, mask_mod = make(*captured)
    q, k, v = tensors(random, heads_kv=H)
    block_mask = None if mask_mod is None else torch_flex.create_block_mask(mask_mod, B, H, S, S)
    peer = torch.compile(torch_flex.flex_attention)(q, k, v, score_mod, block_mask)
    found, _ = fused(q, k, v, score_mod, mask_mod)
    truth, _ = dense.attention_and_lse(*dense.widened((q, k, v)), *make(*dense.widened(captured)))
    band = dense.ROUNDING_BAND * torch.finfo(q.dtype).eps * truth.abs().max()
    assert (found - truth).abs().max() <= 2 * (peer - truth).abs().max() + band


@pytest.mark.parametrize("dtype, backends", [(torch.bfloat16, None), (torch.float32, None), (torch.bfloat16, "cudnn")], ids=str)
def test_tokens_of_no_sequence_are_0(dtype, backends, random):
    """In memory that held NaN before: on a GPU kernels write the rows of tokens before the first offset and from the last one on."""
    q, k, v = (torch.randn(S, heads, D, generator=random).to("cuda", dtype) for heads in (H, 2, 2))
    first, end = 11, S - 37
    offsets = torch.tensor([first, 60, 60, end], dtype=torch.int32, device="cuda")

    def results(q, k, v, offsets):
        q, k, v = leaves = [each.detach().requires_grad_() for each in (q, k, v)]
        nan = torch.full((64, S, H, D), torch.nan, device="cuda")
        del nan  # the allocator gives its memory again
        o, lse = fused(q, k, v, None, causal, q_offsets=offsets, max_length=S, deterministic=True, backends=backends)
        return [o, lse, *torch.autograd.grad(o.float().square().sum(), leaves)]

    found = results(q, k, v, offsets)
    inside = results(*(each[first:end] for each in (q, k, v)), offsets - first)
    for whole, part, outside in zip(found, inside, (0, -torch.inf, 0, 0, 0), strict=True):
        torch.testing.assert_close(whole[first:end], part)
        assert (whole[:first] == outside).all() and (whole[end:] == outside).all()
    out = torch.full_like(found[0], torch.nan).detach()
    with torch.no_grad():
        flex_attention(q, k, v, None, mask_mod=causal, enable_gqa=True, q_offsets=offsets, max_length=S, backends=backends, out=out)
    assert torch.equal(out, found[0])


def test_a_captured_tensor_on_the_cpu_is_refused(random):
    q, k, v = tensors(random)
    slopes = torch.ones(H)
    with pytest.raises(scoremod.InvalidArgumentError, match="expected one on cuda:0, where query is, found one on cpu"):
        fused(q, k, v, lambda score, b, h, q_idx, kv_idx: score + slopes[h], None)


def test_autocast(random):
    q, k, v = (x.float().requires_grad_() for x in tensors(random))
    with torch.autocast("cuda", dtype=torch.bfloat16):
        o, _ = fused(q, k, v, None, causal)
    assert o.dtype == torch.bfloat16 and torch.equal(o, fused(q.bfloat16(), k.bfloat16(), v.bfloat16(), None, causal)[0])


@pytest.mark.skipif(torch.cuda.is_available() and torch.cuda.device_count() < 2, reason="one GPU")
def test_each_device_has_its_own(random):
    q, k, v = tensors(random)
    expected, _ = fused(q, k, v, None, causal)
    found, _ = fused(*(x.to("cuda:1") for x in (q, k, v)), None, causal)
    assert found.device == torch.device("cuda:1") and torch.equal(found.to("cuda:0"), expected)
