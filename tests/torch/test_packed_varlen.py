"""Varlen tensors that are parts of larger ones, such as packed queries, keys and values: they are read and differentiated where they lie."""

import pytest
import torch

from scoremod.torch import flash_attn, flex_attention
from scoremod.torch.native import binding

H, D, TOKENS = 4, 8, 23
ENDS = torch.tensor([0, 7, 7, 20])  # the last three tokens are in no sequence


@pytest.fixture
def addresses():
    """The addresses of query, key and value in each call of the library."""
    found = []
    before = binding.observe(lambda call, tensors: found.append([each.data_ptr() for each in tensors[:3]]) or (before and before(call, tensors)))
    yield found
    binding.observe(before)


def packed(kind, generator):
    """(what holds them, query, key and value as parts of it)."""
    if kind == "T3HD":
        whole = torch.randn(TOKENS, 3, H, D, generator=generator)
        return whole, whole.unbind(1)
    if kind == "TH3D":
        whole = torch.randn(TOKENS, H, 3, D, generator=generator)
        return whole, whole.unbind(2)
    if kind == "heads first":
        whole = torch.randn(3, H, TOKENS, D, generator=generator)
        return whole, [each.transpose(0, 1) for each in whole]
    whole = torch.randn(3, TOKENS, H, D + 5, generator=generator)  # gaps behind each head
    return whole, [each[..., :D] for each in whole]


@pytest.mark.parametrize("kind", ["T3HD", "TH3D", "heads first", "gaps"])
@pytest.mark.parametrize("wants", ["outputs", "gradients"])
def test_parts_are_as_their_copies(kind, wants, random, addresses):
    whole, parts = packed(kind, random)
    slopes = torch.randn(H, generator=random)

    def attend(q, k, v):
        return flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: score + slopes[h] * (kv_idx - q_idx) * (b + 1), q_offsets=ENDS, return_lse=True)

    if wants == "outputs":
        with torch.no_grad():
            for _ in range(3):
                found = attend(*parts)
                assert addresses[-1] == [each[: ENDS[-1]].data_ptr() for each in parts]  # none was copied
            expected = attend(*(each.contiguous() for each in parts))
        for each, other in zip(found, expected, strict=True):
            torch.testing.assert_close(each, other, rtol=2e-6, atol=2e-6)
        assert found[0].shape == (TOKENS, H, D) and found[0][ENDS[-1] :].abs().max() == 0
        return
    whole.requires_grad_()
    axis = {"T3HD": 1, "TH3D": 2}.get(kind, 0)
    of_parts = [each.transpose(0, 1) if kind == "heads first" else each[..., :D] for each in whole.unbind(axis)]
    d_o = torch.randn(TOKENS, H, D, generator=random)
    (found,) = torch.autograd.grad((attend(*of_parts)[0] * d_o).sum(), whole)
    assert addresses[-1] == [each[: ENDS[-1]].data_ptr() for each in of_parts]
    copies = [each.detach().contiguous().requires_grad_() for each in of_parts]
    expected = torch.autograd.grad((attend(*copies)[0] * d_o).sum(), copies)
    for each, other in zip(found.unbind(axis), expected, strict=True):
        each = each.transpose(0, 1) if kind == "heads first" else each[..., :D]
        torch.testing.assert_close(each, other, rtol=2e-5, atol=2e-6)


def test_flash_attentions_packed_function_copies_nothing(random, addresses):
    qkv = torch.randn(TOKENS, 3, H, D, generator=random)
    ends = torch.tensor([0, 9, TOKENS], dtype=torch.int32)
    with torch.no_grad():
        found = flash_attn.flash_attn_varlen_func(*qkv.unbind(1), ends, ends, 14, 14, causal=True)
        assert addresses[-1] == [each.data_ptr() for each in qkv.unbind(1)]
        expected = flash_attn.flash_attn_varlen_func(*(each.contiguous() for each in qkv.unbind(1)), ends, ends, 14, 14, causal=True)
    torch.testing.assert_close(found, expected, rtol=2e-6, atol=2e-6)


def test_parts_that_share_memory_are_copied(random, addresses):
    """Tokens that repeat, and heads that do: no problem has such tensors."""
    one = torch.randn(1, H, D, generator=random)
    with torch.no_grad():
        for shared in (
            one.expand(TOKENS, H, D),
            one[:, :1].expand(1, H, D).expand(TOKENS, H, D),
            torch.randn(TOKENS, 1, D, generator=random).expand(TOKENS, H, D),
        ):
            found = flex_attention(shared, shared, shared, q_offsets=ENDS)
            assert addresses[-1][0] != shared.data_ptr()
            copy = shared.contiguous()
            assert torch.equal(found, flex_attention(copy, copy, copy, q_offsets=ENDS))
