"""dropout_p drops the weights that scoremod.Attention drops with the same state, forward and backward; max_scores are the largest scores."""

import numpy as np
import pytest
import torch
from torch.nn.attention import flex_attention as torch_flex
from torch.utils.checkpoint import checkpoint

import scoremod
from scoremod.torch import flex_attention

B, H, S, D = 2, 2, 24, 8


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


@pytest.fixture
def tensors(random):
    return [torch.randn(B, H, S, D, generator=random).requires_grad_() for _ in range(3)]


def results(function, tensors, d_o, seed):
    torch.manual_seed(seed)
    o = function(*tensors)
    return [o.detach(), *torch.autograd.grad(o, tensors, d_o)]


def attend(q, k, v):
    return flex_attention(q, k, v, mask_mod=causal, dropout_p=0.4)


def test_weights_are_dropped_as_the_state_says(tensors, random, seed):
    d_o = torch.randn(B, H, S, D, generator=random)
    problem = {
        "batch": B, "heads_q": H, "seq_q": S, "dim_qk": D, "layout": "BHSD", "backward": True, "stats": True, "dropout": 0.4,
        "program": ["value = score", "keep = q_idx >= kv_idx"],
    }  # fmt: skip
    torch.manual_seed(seed)
    state = scoremod.DropoutState(*torch.randint(2**62, (2,), dtype=torch.int64).tolist())
    attention = scoremod.Attention(problem)
    arrays = [x.detach().numpy() for x in tensors]
    o, lse = attention.forward(*arrays, return_lse=True, dropout=state)
    expected = [o, *attention.backward(*arrays, o, lse, d_o.numpy(), dropout=state)[:3]]
    for _ in range(2):  # the second call is of a known kind
        for found, wanted in zip(results(attend, tensors, d_o, seed), expected, strict=True):
            np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("run", ["checkpoint", "aot_eager"])
def test_the_same_weights_are_dropped_when_recomputed_and_compiled(run, tensors, random, seed):
    d_o = torch.randn(B, H, S, D, generator=random)
    other = torch.compile(attend, fullgraph=True, backend="aot_eager") if run == "aot_eager" else lambda *x: checkpoint(attend, *x, use_reentrant=False)
    for found, wanted in zip(results(other, tensors, d_o, seed), results(attend, tensors, d_o, seed), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_each_call_drops_others(tensors):
    torch.manual_seed(0)
    assert not torch.equal(attend(*tensors), attend(*tensors))
    assert torch.equal(flex_attention(*tensors, dropout_p=0.0), flex_attention(*tensors))


@pytest.mark.parametrize("wrong", [1.0, 1 - 2**-40, 10**400, -0.1, float("nan"), "half"])
def test_what_is_no_part_is_refused(wrong, tensors):
    with pytest.raises(scoremod.InvalidArgumentError, match="dropout_p: expected a number from 0 to below 1"):
        flex_attention(*tensors, dropout_p=wrong)


def test_vmap_is_refused(tensors):
    with pytest.raises(scoremod.UnsupportedError, match="dropout_p: expected 0"):
        torch.vmap(lambda q: flex_attention(q, q, q, dropout_p=0.5), randomness="different")(torch.stack(tensors))


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_the_largest_scores(compiled, gradients, tensors):
    tensors = [x.requires_grad_(gradients) for x in (t.detach() for t in tensors)]

    def function(q, k, v):
        request = torch_flex.AuxRequest(lse=True, max_scores=True)
        return flex_attention(q, k, v, lambda s, b, h, i, j: s + j, mask_mod=lambda b, h, i, j: j < i, return_aux=request)

    o, aux = (torch.compile(function, fullgraph=True, backend="aot_eager") if compiled else function)(*tensors)
    rows = torch.arange(S)
    scores = (tensors[0] @ tensors[1].transpose(2, 3) / D**0.5 + rows).masked_fill(rows >= rows[:, None], -torch.inf)
    torch.testing.assert_close(aux.max_scores, scores.amax(dim=3))
    torch.testing.assert_close(aux.lse, scores.logsumexp(dim=3))
    assert not aux.max_scores.requires_grad and o.requires_grad == gradients


def test_the_lse_has_a_gradient_of_all_weights(tensors, random):
    """Which no weight that is dropped changes."""
    weights = torch.randn(B, H, S, generator=random)

    def gradients(dropout_p):
        _, lse = flex_attention(*tensors, mask_mod=causal, dropout_p=dropout_p, return_lse=True)
        return torch.autograd.grad((lse * weights).sum(), tensors[:2])

    for found, expected in zip(gradients(0.4), gradients(0.0), strict=True):
        assert (found - expected).norm() <= 64 * 2**-24 * expected.norm()


def test_dropout_that_rounds_to_1_is_refused_as_it_was_given():
    query = torch.ones(1, 1, 4, 8)
    with pytest.raises(scoremod.InvalidArgumentError, match="in float32 at most 0.9999999403953552, found 0.999999999"):
        flex_attention(query, query, query, dropout_p=1 - 1e-9)
