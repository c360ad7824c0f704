"""torch's BlockMask: which are taken, what is read of them, and what scripts import beside flex_attention."""

import dense_reference as dense
import pytest
import torch
import torch.nn.attention.flex_attention as torch_flex
from torch.nn.attention.experimental._paged_attention import PagedAttention

import scoremod
import scoremod.torch
from scoremod.torch import api, create_block_mask, flex_attention
from scoremod.torch.native import binding


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def tensors(random, batch=2, heads=(4, 4), seq=(32, 32), dim=16, keys_of=None):
    shapes = (batch, heads[0], seq[0], dim), (keys_of or batch, heads[1], seq[1], dim)
    return [torch.randn(shapes[min(i, 1)], generator=random) for i in range(3)]


def test_all_that_torchs_module_exports_is_here():
    """One changed import serves a script, whatever it imports."""
    for name in torch_flex.__all__:
        assert name in scoremod.torch.__all__
        if name != "flex_attention":
            assert getattr(scoremod.torch, name) is getattr(torch_flex, name)
    assert scoremod.torch.flex_attention is not torch_flex.flex_attention


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(
    ("made_for", "message"),
    [
        ((None, None, 16, 16), r"block_mask was created for a smaller length .* expected one for 32 queries and 32 keys, found one for 16 and 16"),
        ((None, None, 32, 24), r"created for a smaller length .* found one for 32 and 24"),
        ((None, None, 64, 32), r"created for a larger length .* found one for 64 and 32; .*_adjust"),
        ((3, None, 32, 32), "block_mask: expected one for 1 or 2 batches, as many as query has, found one for 3"),
        ((2, 3, 32, 32), "expected one for 1 or 4 heads, as many as query has, found one for 3"),
    ],
)
def test_a_mask_that_was_made_for_other_tensors_is_refused_as_torch_does(made_for, message, compiled, random):
    torch._dynamo.reset()
    block_mask = create_block_mask(causal, *made_for, device="cpu")
    run = torch.compile(flex_attention, backend="eager") if compiled else flex_attention
    with pytest.raises(RuntimeError, match=message) as caught:
        run(*tensors(random), block_mask=block_mask)
    assert compiled or isinstance(caught.value, scoremod.InvalidArgumentError)


@pytest.mark.parametrize("made_for", [(None, None), (2, None), (1, 4), (2, 4), (2, 2)])
def test_a_mask_that_was_made_for_these_tensors_is_taken(made_for, random):
    q, k, v = tensors(random, heads=(4, 2))
    block_mask = create_block_mask(causal, *made_for, 32, 32, device="cpu")
    found = flex_attention(q, k, v, block_mask=block_mask, enable_gqa=True)
    assert torch.equal(found, flex_attention(q, k, v, mask_mod=causal, enable_gqa=True))


def blocks_alone(random, batch, heads, rows, columns, size):
    """(BlockMask without a mask_mod, which blocks it has), at least one in each row."""
    chosen = torch.rand(batch, heads, rows, columns, generator=random) < 0.5
    chosen[..., 0] = True
    count = chosen.sum(dim=-1, dtype=torch.int32)
    indices = chosen.to(torch.int32).argsort(dim=-1, descending=True, stable=True).to(torch.int32)
    lengths = (rows * size, columns * size)
    return torch_flex.BlockMask.from_kv_blocks(count, indices, BLOCK_SIZE=size, seq_lengths=lengths), chosen


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("outer", [(1, 1), (2, 1), (2, 4)])
def test_blocks_alone_are_the_mask(outer, compiled, random):
    torch._dynamo.reset()
    given = tensors(random, seq=(32, 48))
    block_mask, chosen = blocks_alone(random, *outer, 2, 3, 16)
    kept = chosen.repeat_interleave(16, dim=2).repeat_interleave(16, dim=3).expand(2, 4, -1, -1)
    run = torch.compile(flex_attention, fullgraph=True, backend="aot_eager") if compiled else flex_attention
    expected, _ = dense.attention_and_lse(*given, None, lambda b, h, q_idx, kv_idx: kept[b, h, q_idx, kv_idx])
    torch.testing.assert_close(run(*given, block_mask=block_mask), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_mask_of_noop_mask_makes_no_graph_break(dynamic, random):
    torch._dynamo.reset()
    given = [x.requires_grad_() for x in tensors(random, seq=(32, 40))]
    block_mask = create_block_mask(torch_flex.noop_mask, None, None, 32, 40, device="cpu")
    results = []
    for run in (torch.compile(flex_attention, fullgraph=True, backend="aot_eager", dynamic=dynamic), flex_attention):
        o = run(*given, block_mask=block_mask)
        results.append([o, *torch.autograd.grad(o.square().sum(), given)])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=2e-6, atol=2e-6)


@pytest.fixture
def addresses():
    """The address of the keys in each call of the library."""
    found = []
    before = binding.observe(lambda call, given: found.append(given[1].data_ptr()))
    yield found
    binding.observe(before)


@pytest.mark.parametrize("shared", ["both", "key", "value"])
@pytest.mark.parametrize("road", ["eager", "operator", "compiled"])
def test_keys_of_one_batch_are_those_of_each(shared, road, random, addresses, monkeypatch):
    """With gradients that are summed over the batches; without gradients nothing is copied."""
    torch._dynamo.reset()
    q, k, v = tensors(random, batch=3, heads=(4, 2), seq=(20, 24))
    k, v = k[:1] if shared != "value" else k, v[:1] if shared != "key" else v
    slopes = torch.randn(4, generator=random)

    def modifiers(slopes):
        return lambda score, b, h, q_idx, kv_idx: score + slopes[h] * b * (kv_idx - q_idx), causal

    def attention(q, k, v, score_mod, mask_mod):
        return flex_attention(q, k, v, score_mod, mask_mod=mask_mod, enable_gqa=True, return_lse=True)

    run = torch.compile(attention, fullgraph=True, backend="aot_eager") if road == "compiled" else attention
    if road == "operator":
        monkeypatch.setattr(api, "is_plain", lambda *tensors: False)
        monkeypatch.setattr(api, "repeated", lambda *request: None)
    for _ in range(2):  # the second call is known
        found, *_ = dense.check(run, [q, k, v], [slopes], modifiers, random)
    addresses.clear()
    with torch.no_grad():
        o, _ = run(q, k, v, *modifiers(slopes))
    torch.testing.assert_close(o, found[0])
    assert addresses == [k.data_ptr()]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_torchs_paged_attention(compiled, random):
    """A pool of pages for all sequences is one batch of keys, whose functions look positions up."""
    torch._dynamo.reset()
    batch, heads, page, pages, dim = 3, 2, 16, 10, 8
    lengths = torch.tensor([40, 16, 23])
    q, k, v = tensors(random, batch=batch, heads=(heads, heads), seq=(4, 48), dim=dim)
    paged = PagedAttention(pages, page, max_batch_size=batch + 2, device="cpu")
    for b in torch.randperm(batch, generator=random).tolist():
        paged.reserve(torch.tensor(b), lengths[b])
    pools = [torch.full((1, heads, pages * page, dim), torch.nan) for _ in range(2)]
    for b, length in enumerate(lengths.tolist()):
        paged.assign(torch.tensor([b]), torch.arange(length)[None], k[b : b + 1, :, :length], v[b : b + 1, :, :length], *pools)
    slopes = torch.randn(heads, generator=random)

    def alibi(score, b, h, q_idx, kv_idx):
        return score + slopes[h] * (kv_idx - q_idx)

    def last_queries(b, h, q_idx, kv_idx):
        return q_idx + lengths[b] - 4 >= kv_idx

    block_mask = paged.convert_logical_block_mask(create_block_mask(last_queries, batch, None, 4, 48, device="cpu", BLOCK_SIZE=page), kv_len=lengths)
    run = torch.compile(flex_attention, fullgraph=True, backend="aot_eager") if compiled else flex_attention
    found = run(q, *pools, paged.get_score_mod(alibi, lengths), block_mask=block_mask)
    expected = flex_attention(q, k, v, alibi, mask_mod=last_queries, lengths=lengths)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert torch.isfinite(found).all()
