"""scoremod.torch.merge: parts of the keys, attended to apart, are attention over all of them."""

import pytest
import torch

import scoremod
from scoremod.torch import flex_attention, merge


def parts_of(k, v, cuts):
    return zip(k.tensor_split(cuts, dim=2), v.tensor_split(cuts, dim=2), (0, *cuts))


def merged_attention(q, k, v, slopes, cuts, order):
    results = []
    for keys, values, first in parts_of(k, v, cuts):

        def score_mod(score, b, h, q_idx, kv_idx, first=first):
            return score + slopes[h] * (kv_idx + first - q_idx)

        def mask_mod(b, h, q_idx, kv_idx, first=first):
            return q_idx >= kv_idx + first

        results.append(flex_attention(q, keys, values, score_mod, mask_mod=mask_mod, return_lse=True))
    results = [results[place] for place in order]
    o, lse = results[0]
    for part in results[1:]:
        o, lse = merge(o, lse, *part)
    return o, lse


@pytest.mark.parametrize("number", range(6))
def test_parts_are_the_whole_with_gradients(number, seed):
    generator = torch.Generator().manual_seed(seed)
    s = int(torch.randint(5, 40, (), generator=generator))
    cuts = sorted(torch.randint(1, s, (2,), generator=generator).tolist())
    cuts = sorted(set(cuts))
    inputs = [torch.randn(2, 3, s, 8, generator=generator).requires_grad_() for _ in range(3)] + [torch.randn(3, generator=generator).requires_grad_()]
    order = torch.randperm(len(cuts) + 1, generator=generator).tolist()
    weights = torch.randn(2, 3, s, 8, generator=generator), torch.randn(2, 3, s, generator=generator)
    q, k, v, slopes = inputs
    whole = flex_attention(q, k, v, lambda score, b, h, i, j: score + slopes[h] * (j - i), mask_mod=lambda b, h, i, j: i >= j, return_lse=True)
    found = merged_attention(q, k, v, slopes, cuts, order)
    torch.testing.assert_close(found, whole, rtol=2e-5, atol=2e-5)
    expected = torch.autograd.grad(sum((x * w).sum() for x, w in zip(whole, weights)), inputs)
    gradients = torch.autograd.grad(sum((x * w).sum() for x, w in zip(found, weights)), inputs)
    torch.testing.assert_close(gradients, expected, rtol=2e-4, atol=2e-4)


def test_rows_without_a_key_stay_empty_and_finite():
    o, lse = torch.zeros(1, 1, 2, 4, requires_grad=True), torch.tensor([[[float("-inf"), 1.0]]], requires_grad=True)
    other, other_lse = torch.ones(1, 1, 2, 4), torch.tensor([[[float("-inf"), float("-inf")]]])
    merged, merged_lse = merge(o, lse, other, other_lse)
    assert merged.tolist() == o.tolist() and merged_lse.tolist() == lse.tolist()
    gradients = torch.autograd.grad(merged.sum() + merged_lse[..., 1].sum(), (o, lse))
    assert all(torch.isfinite(each).all() for each in gradients) and gradients[1].tolist() == [[[0.0, 1.0]]]


def test_far_scores_do_not_overflow_and_dtypes_stay():
    o, lse = torch.full((1, 1, 1, 2), 3.0, dtype=torch.bfloat16), torch.full((1, 1, 1), 2000.0)
    merged, merged_lse = merge(o, lse, -o, lse)
    assert merged.dtype == torch.bfloat16 and merged.abs().max() == 0
    torch.testing.assert_close(merged_lse, lse + torch.tensor(2.0).log())
    assert merge(o, lse, -o, lse - 4000)[0].tolist() == o.tolist()


@pytest.mark.parametrize(("name", "change"), [("lse", 1), ("other_output", 2), ("other_lse", 3)])
def test_shapes_that_do_not_fit_are_refused(name, change):
    given = [torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3), torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3)]
    given[change] = given[change][:, :1]
    with pytest.raises(scoremod.InvalidArgumentError, match=f"merge: expected {name} of shape"):
        merge(*given)
    with pytest.raises(scoremod.InvalidArgumentError, match="floating-point"):
        merge(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, dtype=torch.int32), torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3))
