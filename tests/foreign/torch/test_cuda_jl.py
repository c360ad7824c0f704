"""CUDA.jl's attention with cuDNN, written anew from its documentation: the calls that its tests try, and each argument that it refuses.

Its tensors are (head dim, heads, sequence, batch) with the first dimension dense: those of [batch, sequence, heads, head dim] in PyTorch's order.
"""

import dense_reference as dense
import numpy as np
import pytest
import scoremod
import torch
from errors_in_torch import largest_ratio

from scoremod.torch import explain, flex_attention

SUITE = "CUDA.jl attention"

# name: (heads of q and kv, lengths of q and kv, head dim, causal, whether sequences have lengths of their own)
CALLS = {
    "plain": ((4, 4), (32, 32), 64, False, False),
    "causal": ((4, 4), (32, 32), 64, True, False),
    "grouped heads": ((6, 2), (33, 33), 64, True, False),
    "one KV head": ((4, 1), (17, 40), 32, False, False),
    "causal with more keys": ((2, 2), (16, 48), 64, True, False),
    "causal with more queries": ((2, 2), (48, 16), 64, True, False),
    "head dim 8": ((2, 1), (24, 24), 8, True, False),
    "head dim 256": ((1, 1), (20, 20), 256, True, False),
    "lengths": ((4, 2), (32, 40), 64, False, True),
    "causal with lengths": ((4, 4), (40, 40), 128, True, True),
    "one query": ((4, 2), (1, 50), 64, False, False),
}
DTYPES = (torch.float16, torch.bfloat16)
BATCH = 3


def drawn(random, heads, seq, dim, dtype):
    """q, k and v in memory as CUDA.jl has them."""
    shapes = (BATCH, seq[0], heads[0], dim), *[(BATCH, seq[1], heads[1], dim)] * 2
    return [torch.randn(shape, generator=random).to(dtype).transpose(1, 2) for shape in shapes]


@pytest.mark.parametrize("dtype", DTYPES, ids=["float16", "bfloat16"])
@pytest.mark.parametrize("name", CALLS)
def test_call(name, dtype, foreign_seed, record):
    heads, seq, dim, causal, padded = CALLS[name]
    random = torch.Generator().manual_seed(foreign_seed)
    tensors = drawn(random, heads, seq, dim, dtype)
    lengths = [torch.randint(0, most + 1, (BATCH,), generator=random) if padded else torch.full((BATCH,), most) for most in seq]
    scale = 0.1 + torch.rand((), generator=random).item() / dim**0.5

    def kept(b, h, q_idx, kv_idx):
        within = (q_idx < lengths[0][b]) & (kv_idx < lengths[1][b])
        return within & (q_idx >= kv_idx) if causal else within

    def attention(q, k, v, score_mod, mask_mod):
        below = (lambda b, h, q_idx, kv_idx: q_idx >= kv_idx) if causal else None
        ends = {"lengths": tuple(lengths)} if padded else {}
        return flex_attention(q, k, v, score_mod, mask_mod=below, scale=scale, enable_gqa=True, return_lse=True, **ends)

    # The dense computation has the usual scale.
    scaled = lambda: (lambda score, b, h, q_idx, kv_idx: score * (scale * dim**0.5), kept)  # noqa: E731
    results = dense.check(lambda q, k, v, *_: attention(q, k, v, None, None), tensors, (), scaled, random)
    record(SUITE, f"{name}, {str(dtype).removeprefix('torch.')}", "torch", largest_ratio(*results))


def four(dim=16, heads=4, heads_kv=2, seq=9, seq_kv=11, dtype=torch.float16):
    return [torch.ones(BATCH, h, s, dim, dtype=dtype) for h, s in ((heads, seq), (heads_kv, seq_kv), (heads_kv, seq_kv))]


def called(tensors, **options):
    return flex_attention(*tensors, enable_gqa=True, **options)


# CUDA.jl raises an ArgumentError or a DimensionMismatch for these, and flex_attention refuses them as well: name -> (call, message).
REFUSED = {
    "integers": (lambda: called(four(dtype=torch.int32)), "expected query, key and value of one dtype, float32"),
    "other head dims of q and k": (lambda: called([four(dim=8)[0], *four()[1:]]), "key: expected the head dim of query, 8, found 16"),
    "other lengths of k and v": (lambda: called([*four()[:2], four(seq_kv=12)[2]]), "value: expected the length of key, 11, found 12"),
    "other heads of k and v": (lambda: called([*four()[:2], four(heads_kv=4)[2]]), "value: expected the number of heads of key, 2, found 4"),
    "other batches": (lambda: called([four()[0][:2], *four()[1:]]), "key: expected the batch of query, 2, found 3"),
    "heads that are no multiple": (lambda: called(four(heads=3)), "query: expected a number of heads that is a multiple of key's 2, found 3"),
    "an output of another shape": (lambda: called(four(), out=torch.ones(BATCH, 4, 8, 16, dtype=torch.float16)), "out: expected"),
    "an output of another dtype": (lambda: called(four(), out=torch.ones(BATCH, 4, 9, 16)), "out: expected"),
    "lengths of another batch": (lambda: called(four(), lengths=torch.tensor([3, 3])), "lengths: expected"),
    "lengths that are no integers": (lambda: called(four(), lengths=torch.tensor([3.0, 3.0, 3.0])), "lengths: expected"),
    "a length over the tensor's": (lambda: called(four(), lengths=torch.tensor([3, 12, 3])), "lengths: expected"),
    "arrays of the host": (lambda: called([np.ones((1, 1, 4, 8), np.float16)] * 3), "query: expected a torch.Tensor, found ndarray"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_both_refuse(name):
    call, message = REFUSED[name]
    with pytest.raises((scoremod.InvalidArgumentError, scoremod.UnsupportedError), match=message):
        call()


# CUDA.jl refuses these, and flex_attention takes them: name -> (tensors, what makes score_mod of a bias).
TAKEN = {
    "float32": (lambda r: drawn(r, (2, 2), (9, 9), 16, torch.float32), None),
    "a bias": (lambda r: drawn(r, (2, 2), (9, 9), 16, torch.float16), lambda bias: lambda score, b, h, q_idx, kv_idx: score + bias[q_idx, kv_idx]),
    "a head dim of 12": (lambda r: drawn(r, (2, 2), (9, 9), 12, torch.float16), None),
    "a head dim of 264": (lambda r: drawn(r, (1, 1), (9, 9), 264, torch.float16), None),
    "another head dim of v": (lambda r: [*drawn(r, (2, 2), (9, 9), 24, torch.float16)[:2], drawn(r, (2, 2), (9, 9), 16, torch.float16)[2]], None),
    "views": (lambda r: [x[:, :, 1:] for x in drawn(r, (2, 2), (9, 12), 16, torch.float16)], None),
    "a head dim that is not dense": (lambda r: [x[..., ::2] for x in drawn(r, (2, 2), (9, 9), 32, torch.float16)], None),
}


@pytest.mark.parametrize("name", TAKEN)
def test_what_only_cuda_jl_refuses(name, foreign_seed, record):
    draw, make = TAKEN[name]
    random = torch.Generator().manual_seed(foreign_seed)
    tensors = draw(random)
    bias = [torch.randn(9, 9, generator=random)] if make else []
    modifiers = lambda *captured: (make(*captured) if make else None, None)  # noqa: E731
    fused = lambda q, k, v, score_mod, mask_mod: flex_attention(q, k, v, score_mod, return_lse=True)  # noqa: E731
    record(SUITE, name, "torch", largest_ratio(*dense.check(fused, tensors, bias, modifiers, random)))


def test_lengths_of_the_keys_alone():
    """CUDA.jl wants both lengths or none."""
    q, k, v = four()
    ends = torch.tensor([3, 0, 11])
    o = called((q, k, v), lengths=ends)
    assert torch.equal(o, called((q, k, v), lengths=(torch.full((BATCH,), 9), ends))) and not o[1].any()


def test_an_empty_output_returns_early():
    q, k, v = four(seq=0)
    assert called((q, k, v)).shape == (BATCH, 4, 0, 16)


def test_the_question_before_a_call_agrees_with_it():
    """Its predicate is false for what it lacks, and raises for shapes that don't fit."""
    assert explain(*four(), enable_gqa=True).backend is not None
    with pytest.raises(scoremod.InvalidArgumentError, match="key: expected the head dim of query"):
        explain(four(dim=8)[0], *four()[1:], enable_gqa=True)
