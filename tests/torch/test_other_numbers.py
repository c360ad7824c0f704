"""Numbers of PyTorch that score programs, which have float32 and int32, hold differently: computed by PyTorch, checked, or refused."""

import numpy as np
import pytest
import torch

import scoremod
from scoremod.torch import eager_calls, flex_attention, kept_traces

S = 8


def weights(score_mod, mask_mod=None):
    """The softmax [S, S] of what a score function makes of zeros."""
    query = torch.zeros(1, 1, S, S)
    return flex_attention(query, query, torch.eye(S)[None, None], score_mod, mask_mod=mask_mod)[0, 0]


def of(scores):
    return torch.softmax(scores.float(), dim=-1)


class TestGradientMode:
    """A function finds gradients on or off as its caller has them."""

    @pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
    def test_is_grad_enabled_answers_as_outside(self, mode, monkeypatch):
        monkeypatch.setattr(kept_traces, "_kept", {})
        monkeypatch.setattr(eager_calls, "_kept", {})
        with mode():
            expected, found = torch.is_grad_enabled(), []
            weights(lambda score, *indices: found.append(torch.is_grad_enabled()) or score)
            assert found == [expected] and torch.is_grad_enabled() == expected

    def test_another_mode_makes_another_program(self):
        def score_mod(score, b, h, q_idx, kv_idx):
            return score + kv_idx * (1.0 if torch.is_grad_enabled() else 2.0)

        positions = torch.arange(float(S)).expand(S, S)
        for _ in range(2):
            torch.testing.assert_close(weights(score_mod), of(positions))
            with torch.no_grad():
                torch.testing.assert_close(weights(score_mod), of(2 * positions))

    def test_a_function_that_turns_them_off_is_refused_where_they_would_flow(self):
        slopes = torch.ones(S, requires_grad=True)

        def score_mod(score, b, h, q_idx, kv_idx):
            with torch.no_grad():
                return score * 2

        def of_a_tensor(score, b, h, q_idx, kv_idx):
            with torch.no_grad():
                bias = slopes[kv_idx] * 2
            return score + bias

        for function in (score_mod, of_a_tensor):
            with pytest.raises(scoremod.UnsupportedError, match="where gradients are off"):
                weights(function)
        with torch.no_grad():
            weights(score_mod)

        def of_indices(score, b, h, q_idx, kv_idx):
            with torch.no_grad():
                distance = (q_idx - kv_idx) * 0.5 * (1 if torch.is_grad_enabled() else 2)
            return score + distance

        torch.testing.assert_close(weights(of_indices), of((torch.arange(S)[:, None] - torch.arange(S)).float()))

    def test_what_is_detached_has_no_gradient(self):
        slopes = torch.linspace(0, 1, S).requires_grad_()
        query = torch.ones(1, 1, S, S, requires_grad=True)
        o = flex_attention(query, query, query * torch.arange(S)[:, None], lambda score, b, h, q_idx, kv_idx: score * slopes[kv_idx] + slopes[kv_idx].detach())
        (found,) = torch.autograd.grad(o.square().sum(), slopes)
        scores = torch.ones(S, S) * S**0.5
        dense = torch.softmax(scores * slopes + slopes.detach(), dim=-1) @ (torch.ones(S, S) * torch.arange(S)[:, None])
        (expected,) = torch.autograd.grad(dense.square().sum(), slopes)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


class TestBits:
    """x.view(dtype) takes an element's bits for another number."""

    def test_bits_of_a_captured_tensor_are_what_pytorch_takes_them_for(self):
        bits = torch.linspace(-2, 2, S).view(torch.int32)
        found = weights(lambda score, b, h, q_idx, kv_idx: score + bits[kv_idx].view(torch.float32))
        torch.testing.assert_close(found, of(bits.view(torch.float32).expand(S, S)))

    def test_rounded_numbers_are_what_pytorch_rounds_them_to(self):
        fine = torch.linspace(-2, 2, S) + 1e-3
        for dtype in (torch.float16, torch.bfloat16):
            found = weights(lambda score, b, h, q_idx, kv_idx: score + 64 * fine[kv_idx].to(dtype).float())  # noqa: B023
            torch.testing.assert_close(found, of(64 * fine.to(dtype).float().expand(S, S)))
        rounded = weights(lambda score, b, h, q_idx, kv_idx: score + kv_idx * torch.full((), 0.3, dtype=torch.bfloat16).float())
        torch.testing.assert_close(rounded, of(torch.arange(S) * torch.tensor(0.3, dtype=torch.bfloat16).float()).expand(S, S))


class TestSumsOfIntegers:
    """int64 holds sums that int32 doesn't."""

    ids = torch.tensor([2**31 - 1, 0, -5, 7, 2**31 - 2, 3, 1, 2])

    @pytest.mark.parametrize(
        "function",
        [
            lambda ids, q_idx, kv_idx: ids[q_idx] + 1 > ids[kv_idx],
            lambda ids, q_idx, kv_idx: 1 + ids[q_idx] > ids[kv_idx],
            lambda ids, q_idx, kv_idx: ids[q_idx] - ids[kv_idx] > 0,
            lambda ids, q_idx, kv_idx: torch.sub(1, ids[kv_idx], alpha=2) < 0,
            lambda ids, q_idx, kv_idx: torch.where(ids[q_idx] > 3, ids[q_idx], 0) + q_idx > kv_idx,
            lambda ids, q_idx, kv_idx: torch.clamp(ids[kv_idx], min=0) + ids[q_idx] > 0,
        ],
    )
    def test_numbers_whose_sums_int32_does_not_hold_are_refused(self, function):
        small = self.ids // 2**10
        positions = torch.arange(S, dtype=torch.int32)

        def mask_of(ids):
            return lambda b, h, q_idx, kv_idx: function(ids, q_idx, kv_idx)

        keep = torch.stack([torch.stack([function(small, i, j) for j in positions]) for i in positions])
        expected = torch.where(keep.any(-1, keepdim=True), of(torch.where(keep, 0.0, -torch.inf)), 0.0)
        for _ in range(2):
            torch.testing.assert_close(weights(None, mask_of(small)), expected)
            with pytest.raises(scoremod.InvalidArgumentError, match="so that int32, which score programs compute in, holds"):
                weights(None, mask_of(self.ids))

    def test_the_smallest_integer_is_not_negated(self):
        ids = torch.full((S,), -(2**31))
        for function in (lambda x: -x, abs, lambda x: x // -1):
            with pytest.raises(scoremod.InvalidArgumentError, match="found -2147483648"):
                weights(lambda score, b, h, q_idx, kv_idx: score + function(ids[kv_idx]))  # noqa: B023

    def test_integers_that_are_but_compared_may_be_any_that_int32_holds(self):
        keep = self.ids[:, None] >= self.ids
        torch.testing.assert_close(weights(None, lambda b, h, q_idx, kv_idx: self.ids[q_idx] >= self.ids[kv_idx]), of(torch.where(keep, 0.0, -torch.inf)))

    def test_numbers_of_32_bits_wrap_as_pytorchs_do(self):
        ids = self.ids.int()
        keep = ids[:, None] + 1 > ids
        found = weights(None, lambda b, h, q_idx, kv_idx: ids[q_idx] + 1 > ids[kv_idx])
        torch.testing.assert_close(found, torch.where(keep.any(-1, keepdim=True), of(torch.where(keep, 0.0, -torch.inf)), 0.0))

    def test_a_sum_of_different_widths_is_one_of_64_bits(self):
        wide, narrow = torch.ones(S, dtype=torch.int64), self.ids.int()
        with pytest.raises(scoremod.InvalidArgumentError, match="so that int32"):
            weights(None, lambda b, h, q_idx, kv_idx: wide[q_idx] + narrow[kv_idx] > 0)

    def test_sums_with_constants_of_the_text_are_refused_too(self):
        with pytest.raises(scoremod.InvalidArgumentError, match="which int32 holds, found 2147483654"):
            weights(None, lambda b, h, q_idx, kv_idx: q_idx.long() + (2**31 - 1) > kv_idx + (2**31 - 2))
        with pytest.raises(scoremod.UnsupportedError, match="may be beyond int32"):
            weights(lambda score, *indices: score + (torch.clamp(score, 0, 9).long() + (2**31 - 1)))


class TestWritesThatPytorchDoesNotCount:
    """Integers beyond int32 are found whoever wrote them."""

    @pytest.mark.parametrize("write", [lambda ids, array: ids.data.fill_(2**33 + 1), lambda ids, array: array.__setitem__(3, 2**33 + 1)])
    def test_a_write_between_two_calls_is_seen(self, write):
        array = np.zeros(S, np.int64)
        ids = torch.from_numpy(array)
        for _ in range(2):
            weights(None, lambda b, h, q_idx, kv_idx: ids[q_idx] == ids[kv_idx])
        write(ids, array)
        with pytest.raises(scoremod.InvalidArgumentError, match="found 8589934593"):
            weights(None, lambda b, h, q_idx, kv_idx: ids[q_idx] == ids[kv_idx])

    def test_compiled_calls_look_too(self):
        query = torch.randn(10, 2, 8)

        @torch.compile(backend="eager", fullgraph=True)
        def attend(offsets, ids):
            return flex_attention(query, query, query, lambda score, b, h, q_idx, kv_idx: score + ids[b], q_offsets=offsets, max_length=8)

        offsets, ids = torch.tensor([0, 5, 10]), torch.tensor([1, 2])
        attend(offsets, ids)
        with pytest.raises(scoremod.InvalidArgumentError, match="found 8589934597"):
            attend(torch.tensor([0, 2**33 + 5, 10]), ids)
        with pytest.raises(scoremod.InvalidArgumentError, match="found 8589934597"):
            attend(offsets, ids + 2**33 + 3)

    def test_the_message_names_the_argument(self):
        query = torch.randn(10, 2, 8)
        with pytest.raises(scoremod.InvalidArgumentError, match=r"q_offsets of shape \(3,\): expected integers from .* which int32 holds, found 8589934597"):
            flex_attention(query, query, query, q_offsets=torch.tensor([0, 2**33 + 5, 10]), max_length=8)


def test_float_floor_division_is_pytorchs(random):
    """At multiples, whose quotient may be rounded to another integer, and elsewhere."""
    steps = torch.tensor([0.1, -0.1, 0.3, 0.7, 1.1, -2.3, 4.0, 1e-3])
    counts = torch.randint(-50, 50, (S,), generator=random)
    for numbers in (counts * steps, counts * 0.1, torch.randn(S, generator=random) * 5):
        for function in (lambda x, y: x // y, lambda x, y: torch.div(x, y, rounding_mode="floor"), lambda x, y: torch.floor_divide(x, y)):
            found = weights(lambda score, b, h, q_idx, kv_idx: score + function(numbers[kv_idx], steps[q_idx]) / 8)  # noqa: B023
            torch.testing.assert_close(found, of(function(numbers, steps[:, None]) / 8))
    constant = weights(lambda score, b, h, q_idx, kv_idx: score + numbers[kv_idx] // 0.1)
    torch.testing.assert_close(constant, of((numbers // 0.1).expand(S, S)))
    zeros = weights(lambda score, b, h, q_idx, kv_idx: score + torch.where(((kv_idx + 1.0) // (q_idx * 0.0)).isinf(), kv_idx, 0))
    torch.testing.assert_close(zeros, of(torch.arange(S).expand(S, S)))


def test_numbers_of_a_text_are_made_alike_by_pytorch_alone():
    """A number that PyTorch computes of a function's own numbers, without any tensor, is an operand."""
    found = weights(lambda score, b, h, q_idx, kv_idx: score + kv_idx * torch.lgamma(torch.tensor(2.5)))
    torch.testing.assert_close(found, of((torch.arange(S) * torch.lgamma(torch.tensor(2.5))).expand(S, S)))


def test_a_trace_that_is_not_kept_is_told_once(monkeypatch):
    """With the line that is why, from the second call on; explain says it, too."""
    monkeypatch.setattr(kept_traces, "_told", {})
    slopes, query = torch.ones(S), torch.zeros(1, 1, S, S)

    def score_mod(score, b, h, q_idx, kv_idx):
        return score + torch.exp(slopes)[kv_idx] * (id(slopes) % 2 + 1)

    line = f"{__file__}:{score_mod.__code__.co_firstlineno + 1}"
    weights(score_mod)
    with pytest.warns(UserWarning, match="traced anew at each call") as caught:
        weights(score_mod)
    assert "calls id()" in str(caught[0].message) and line in str(caught[0].message) and caught[0].filename == __file__
    weights(score_mod)
    explained = scoremod.torch.explain(query, query, query, score_mod)
    assert explained.why_not_kept.startswith("calls id()") and line in str(explained)
    assert not scoremod.torch.explain(query, query, query, lambda score, *indices: score * 2).why_not_kept
