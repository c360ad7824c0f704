"""flex_attention against dense attention, and against PyTorch's own flex_attention where that runs on the CPU."""

import dense_reference as dense
import modifiers
import numpy as np
import pytest
import torch
from torch.nn.attention import flex_attention as torch_flex

import scoremod
from scoremod.torch import flex_attention
from scoremod.torch.lengths_and_sinks import with_sink


def fused(q, k, v, score_mod, mask_mod, **options):
    return flex_attention(q, k, v, score_mod, mask_mod=mask_mod, return_lse=True, enable_gqa=True, **options)


def tensors(random, batch=2, heads=(4, 2), seq=(19, 23), dim=(16, 24), dtype=torch.float32):
    shapes = ((batch, heads[0], seq[0], dim[0]), (batch, heads[1], seq[1], dim[0]), (batch, heads[1], seq[1], dim[1]))
    return [torch.randn(shape, generator=random).to(dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", modifiers.NAMES)
def test_forward_and_gradients_are_the_dense_ones(name, dtype, random):
    captured, make = modifiers.cases((2, 4, 19, 23), random)[name]
    dense.check(fused, tensors(random, dtype=dtype), captured, make, random)


@pytest.mark.parametrize("heads", [(3, 1), (2, 2)])
@pytest.mark.parametrize("seq", [(1, 7), (7, 1), (64, 64)])
def test_shapes(heads, seq, random):
    dense.check(fused, tensors(random, 1, heads, seq, (8, 8)), (), lambda: (None, lambda b, h, q_idx, kv_idx: kv_idx <= q_idx + 2), random)


def test_scale(random):
    dense.check(fused, tensors(random), (), lambda: (None, None), random, scale=0.3)


@pytest.mark.parametrize("name", ["causal", "alibi", "soft_cap", "table", "full_bias", "documents", "by_other_axes"])
def test_outputs_are_those_of_torchs_own(name, random):
    captured, make = modifiers.cases((2, 4, 19, 23), random)[name]
    score_mod, mask_mod = make(*captured)
    q, k, v = tensors(random)
    block_mask = None if mask_mod is None else torch_flex.create_block_mask(mask_mod, 2, 4, 19, 23, device="cpu")
    expected, aux = torch_flex.flex_attention(q, k, v, score_mod, block_mask, enable_gqa=True, return_aux=torch_flex.AuxRequest(lse=True))
    found, found_aux = flex_attention(q, k, v, score_mod, block_mask, enable_gqa=True, return_aux=torch_flex.AuxRequest(lse=True))
    truth, truth_lse = dense.attention_and_lse(*dense.widened((q, k, v)), *make(*dense.widened(captured)))
    dense.assert_close([found.detach(), found_aux.lse.detach()], [expected.detach(), aux.lse.detach()], [truth, truth_lse])
    assert found_aux.max_scores is None


def test_a_query_without_a_key_gives_zeros(random):
    q, k, v = (x.requires_grad_() for x in tensors(random))
    o, lse = fused(q, k, v, None, lambda b, h, q_idx, kv_idx: (q_idx != 3) & (q_idx >= 0))
    o.sum().backward()
    assert o[:, :, 3].eq(0).all() and lse[:, :, 3].isneginf().all() and q.grad[:, :, 3].eq(0).all()
    assert torch.isfinite(q.grad).all() and torch.isfinite(k.grad).all()


@pytest.mark.parametrize("order", [(0, 2, 1, 3), (2, 0, 1, 3), (0, 1, 2, 3)])
def test_tensors_lie_in_any_order(order, random):
    """The output's dimensions stand in memory as the query's."""
    plain = tensors(random, seq=(24, 24), heads=(4, 4), dim=(16, 16))
    laid = [x.permute(order).contiguous().permute([order.index(i) for i in range(4)]) for x in plain]
    expected, _ = fused(*plain, None, None)
    found, _ = fused(*laid, None, None)
    assert torch.equal(found, expected) and found.stride() == laid[0].stride()


def test_slices_of_packed_projections_are_not_copied_and_have_gradients(random):
    packed = torch.randn(2, 20, 3, 4, 16, generator=random, requires_grad=True)
    q, k, v = (packed[:, :, i].transpose(1, 2) for i in range(3))
    o, _ = fused(q, k, v, None, None)
    (gradient,) = torch.autograd.grad(o.square().sum(), packed)
    plain = [x.contiguous() for x in (q, k, v)]
    expected, _ = fused(*plain, None, None)
    (expected_gradient,) = torch.autograd.grad(expected.square().sum(), packed)
    assert torch.equal(o, expected) and torch.equal(gradient, expected_gradient)


def test_expanded_tensors_are_taken(random):
    q, k, v = tensors(random, heads=(4, 1))
    expanded = [x.expand(-1, 4, -1, -1) for x in (k, v)]
    assert torch.equal(fused(q, *expanded, None, None)[0], fused(q, k, v, None, None)[0])


def test_offsets_shift_what_the_functions_see(random):
    """A part of the batches, heads and queries with offsets is that part of the whole."""
    q, k, v = tensors(random, batch=3, heads=(4, 4), seq=(16, 16))
    slopes, bias = torch.randn(4, generator=random), torch.randn(3, 4, 16, generator=random)

    def score_mod(score, b, h, q_idx, kv_idx):
        return score + slopes[h] * (q_idx - kv_idx) + bias[b, h, kv_idx]

    causal = lambda b, h, q_idx, kv_idx: q_idx >= kv_idx  # noqa: E731
    whole, _ = fused(q, k, v, score_mod, causal)
    part, _ = fused(q[1:, 2:, 8:], k[1:, 2:], v[1:, 2:], score_mod, causal, offsets=scoremod.Offsets(1, 2, 8, 0))
    torch.testing.assert_close(part, whole[1:, 2:, 8:], rtol=1e-6, atol=1e-6)
    wrong, _ = fused(q[1:, 2:, 8:], k[1:, 2:], v[1:, 2:], score_mod, causal, offsets=scoremod.Offsets(0, 2, 8, 0))
    assert (wrong - whole[1:, 2:, 8:]).abs().max() > 1e-3


@pytest.mark.parametrize("of_queries", [False, True])
def test_a_shard_has_the_lengths_of_its_own_batches(of_queries, random):
    q, k, v = tensors(random, batch=4)
    slopes = torch.rand(4, generator=random)
    lengths = torch.tensor([5, 23, 0, 11]), torch.tensor([19, 4, 7, 1])
    score_mod = lambda score, b, h, q_idx, kv_idx: score * slopes[b]  # noqa: E731
    given = tuple(reversed(lengths)) if of_queries else lengths[0]
    whole = fused(q, k, v, score_mod, None, lengths=given)
    for first in (1, 2, 3):
        own = tuple(each[first:] for each in given) if of_queries else given[first:]
        part = fused(q[first:], k[first:], v[first:], score_mod, None, lengths=own, offsets=scoremod.Offsets(batch=first))
        for one, other in zip(part, whole):
            torch.testing.assert_close(one, other[first:])


@pytest.mark.parametrize("offsets", [torch.zeros(2), "ab", (0, 1, 2, 3, 4), (0.5,)])
def test_wrong_offsets_are_named_beside_lengths(offsets, random):
    q, k, v = tensors(random)
    with pytest.raises((scoremod.InvalidArgumentError, TypeError), match="^offsets"):
        fused(q, k, v, None, None, lengths=torch.tensor([5, 9]), offsets=offsets)


def test_lengths_are_a_mask(random):
    q, k, v = tensors(random)
    of_keys, of_queries = torch.tensor([5, 23]), torch.tensor([19, 4], dtype=torch.int32)
    causal = lambda b, h, q_idx, kv_idx: q_idx >= kv_idx  # noqa: E731
    found = fused(q, k, v, None, causal, lengths=(of_queries, of_keys))
    within = lambda b, h, q_idx, kv_idx: (kv_idx < of_keys[b]) & (q_idx < of_queries[b])  # noqa: E731
    expected = fused(q, k, v, None, lambda *indices: causal(*indices) & within(*indices))
    assert all(map(torch.equal, found, expected))
    assert torch.equal(fused(q, k, v, None, None, lengths=of_keys)[0], fused(q, k, v, None, None, lengths=(None, of_keys))[0])
    with pytest.raises(scoremod.InvalidArgumentError, match=r"lengths: expected an int32 or int64 tensor of shape \(2,\)"):
        fused(q, k, v, None, None, lengths=torch.tensor([5]))


def test_a_sink_is_one_more_term_of_each_sum(random):
    """As a key whose score is the sink and whose value is 0."""

    def with_column(q, k, v, sink):
        group = q.shape[1] // k.shape[1]
        scores = q @ k.repeat_interleave(group, 1).transpose(-1, -2) / q.shape[-1] ** 0.5
        scores = torch.cat([scores, sink[:, None, None].to(scores.dtype).expand(*scores.shape[:3], 1)], dim=-1)
        return torch.softmax(scores, dim=-1)[..., :-1] @ v.repeat_interleave(group, 1), torch.logsumexp(scores, dim=-1)

    given = [*tensors(random), torch.randn(4, generator=random)]
    weights = [torch.randn(2, 4, 19, 24, generator=random), torch.randn(2, 4, 19, generator=random)]
    found = dense.results(lambda q, k, v, sink: fused(q, k, v, None, None, sink=sink), given, weights)
    plain = dense.results(with_column, given, weights)
    truth = dense.results(with_column, dense.widened(given), dense.widened(weights))
    dense.assert_close(found, plain, truth, dense.NAMES)
    with pytest.raises(scoremod.InvalidArgumentError, match=r"sink: expected a float tensor of shape \(4,\)"):
        fused(*given[:3], None, None, sink=torch.ones(3))


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_sink_of_inf_takes_all_weight(backend, random):
    """As a field of the problem, and applied to the output and the LSE; the other heads are what they are without such a sink."""
    given = [x.detach().requires_grad_() for x in tensors(random)]
    sink = torch.tensor([0.5, float("inf"), 3.0, float("-inf")], requires_grad=True)
    o, lse = fused(*given, None, None, sink=sink, backends=backend)
    plain, plain_lse = fused(*given, None, None, backends=backend)
    after, after_lse = with_sink(plain, plain_lse, sink)
    for found, found_lse in ((o, lse), (after, after_lse)):
        assert found[:, 1].eq(0).all() and found_lse[:, 1].isposinf().all()
        torch.testing.assert_close(found[:, 3], plain[:, 3])
        torch.testing.assert_close(found_lse[:, 3], plain_lse[:, 3])
        loss = found[:, [0, 2, 3]].square().sum() + found_lse[:, [0, 2, 3]].sum()
        dq, dk, dv, d_sink = torch.autograd.grad(loss, [*given, sink], retain_graph=True)
        assert dq[:, 1].eq(0).all() and d_sink[1] == 0 and d_sink[3] == 0 and d_sink[0] != 0
        assert all(each.isfinite().all() for each in (dk, dv, d_sink))
    torch.testing.assert_close(o, after)
    poisoned = plain.detach().clone()
    poisoned[:, 1] = float("nan")
    assert with_sink(poisoned, plain_lse.detach() * poisoned[..., 0], sink)[0][:, 1].eq(0).all()


def test_named_backends_run_it(random):
    q, k, v = tensors(random)
    torch.testing.assert_close(fused(q, k, v, None, None, backends=["reference"])[0], fused(q, k, v, None, None, backends="cpu")[0])
    with pytest.raises(scoremod.InvalidArgumentError, match="nobody"):
        fused(q, k, v, None, None, backends="nobody")


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("change", [lambda q, k, v: (q[:0], k[:0], v[:0]), lambda q, k, v: (q[:, :, :0], k, v), lambda q, k, v: (q, k[:, :, :0], v[:, :, :0])])
def test_without_queries_or_keys_each_row_has_no_key(change, compiled, random):
    torch._dynamo.reset()
    given = [x.detach().requires_grad_() for x in change(*tensors(random))]
    sink = torch.randn(4, generator=random, requires_grad=True)
    run = torch.compile(fused, fullgraph=True, backend="aot_eager") if compiled else fused
    o, lse = run(*given, None, None, sink=sink)
    assert o.shape == (*given[0].shape[:3], 24) and o.eq(0).all() and torch.equal(lse, sink[:, None].expand(lse.shape))
    gradients = torch.autograd.grad(o.sum() + lse.sum(), [*given, sink])
    assert all(gradient.eq(0).all() for gradient in gradients[:3])
    assert gradients[3].eq(lse.numel() / 4).all() and fused(*given, None, None)[1].isneginf().all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda q, k, v: (q[0], k, v), "query: expected 4 dimensions"),
        (lambda q, k, v: (q.double(), k.double(), v.double()), "float8_e4m3fn or float8_e5m2, or key and value of one FP8 dtype .*; found query float64"),
        (lambda q, k, v: (q, k.half(), v), "one dtype"),
        (
            lambda q, k, v: (q.bfloat16(), k.half(), v.half()),
            r"query bfloat16, key float16, value float16; convert key and value: key.to\(torch.bfloat16\)",
        ),
        (lambda q, k, v: (q.numpy(), k, v), "query: expected a torch.Tensor"),
        (lambda q, k, v: (torch.cat([q, q[:1]]), k, v), "key: expected the batch of query, 3, found 2"),
        (lambda q, k, v: (q[..., :0], k[..., :0], v), "not empty"),
        (lambda q, k, v: (q[:0], k, v), "key: expected the batch of query, 0, found 2"),
        (lambda q, k, v: (torch.tensor(1.0),) * 3, r"query: expected 4 dimensions .* found shape \(\)"),
        (lambda q, k, v: (q.to("meta"), k, v), "one device"),
    ],
)
def test_wrong_tensors_are_refused(change, message, random):
    with pytest.raises(scoremod.InvalidArgumentError, match=message):
        fused(*change(*tensors(random)), None, None)


def test_wrong_arguments_are_refused(random):
    q, k, v = tensors(random)
    causal = lambda b, h, q_idx, kv_idx: q_idx >= kv_idx  # noqa: E731
    block_mask = torch_flex.create_block_mask(causal, None, None, 19, 23, device="cpu")
    with pytest.raises(scoremod.InvalidArgumentError, match="enable_gqa=True"):
        flex_attention(q, k, v)
    with pytest.raises(scoremod.InvalidArgumentError, match="block_mask or mask_mod, found both"):
        fused(q, k, v, None, causal, block_mask=block_mask)
    with pytest.raises(scoremod.InvalidArgumentError, match="a function goes into mask_mod="):
        fused(q, k, v, None, None, block_mask=causal)
    with pytest.raises(scoremod.InvalidArgumentError, match=r"score_mod: expected a function of \(score, b, h, q_idx, kv_idx\)"):
        fused(q, k, v, causal, None)
    with pytest.raises(scoremod.InvalidArgumentError, match=r"return_aux: expected torch's AuxRequest\(lse=, max_scores=\), found True"):
        flex_attention(q, k, v, enable_gqa=True, return_aux=True)
    with pytest.raises(scoremod.InvalidArgumentError, match="sink: expected a tensor on cpu, where query is, found one on meta"):
        fused(q, k, v, None, None, sink=torch.ones(4, device="meta"))
    with pytest.raises(scoremod.UnsupportedError, match="query: expected a dense tensor, found a nested one"):
        fused(torch.nested.nested_tensor([q[0], q[1]], layout=torch.jagged), k, v, None, None)
    with pytest.raises(scoremod.InvalidArgumentError, match="scale: expected a finite number that float32 holds, found Tensor of shape"):
        fused(q, k, v, None, None, scale=torch.ones(()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"is_causal": True}, r"is_causal: flex_attention\(\) expected no such argument, found one; give mask_mod=lambda b, h, q_idx, kv_idx: q_idx >= kv_idx"),
        ({"attn_mask": None}, r"attn_mask: .* mask\[q_idx, kv_idx\]"),
        ({"dropout": 0.1}, "dropout: .* give dropout_p="),
        ({"cu_seqlens_k": None}, "cu_seqlens_k: .* give kv_offsets="),
        ({"mask_mod": torch.ones(19, 23) > 0}, r"mask_mod: expected a function, found a tensor of shape \(19, 23\); read it in one"),
    ],
)
def test_what_other_functions_have_is_named_with_what_takes_its_place(options, message, random):
    with pytest.raises(scoremod.InvalidArgumentError, match=message):
        flex_attention(*tensors(random), enable_gqa=True, **options)
    with pytest.raises(TypeError, match=r"colour: flex_attention\(\) expected no such argument, found one; its arguments are query, key"):
        flex_attention(*tensors(random), colour=1)


def test_an_array_that_is_indexed_by_an_index_is_refused_with_what_to_do(random):
    slopes = np.ones(4, np.float32)
    with pytest.raises(scoremod.InvalidArgumentError, match=r"index tensors \(torch.as_tensor\(array\)\)"):
        fused(*tensors(random), lambda score, b, h, q_idx, kv_idx: score * slopes[h], None)
