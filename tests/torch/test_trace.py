"""Traces of user functions, and functions that are refused."""

import functools
import sys
import types

import pytest
import torch
import torch.nn.functional as F

import scoremod
from scoremod.torch import flex_attention, kept_traces
from scoremod.torch.captures import Extents
from scoremod.torch.trace import trace

B, H, S = 2, 4, 16
EXTENTS = Extents((0, B), (0, H), (0, S), (0, S))


def traced(score_mod=None, mask_mod=None):
    return trace(score_mod, mask_mod, EXTENTS, torch.device("cpu"))


def operands(score_mod=None, mask_mod=None):
    program, sources = traced(score_mod, mask_mod)
    return [(source.describe(), decl.axes, tuple(source.tensor(torch.device("cpu")).shape)) for decl, source in zip(program.operands, sources)]


def value(score_mod):
    return traced(score_mod)[0].text()


def test_tensors_indexed_by_the_indices_are_read_in_place():
    slopes, bias = torch.ones(H), torch.ones(S, B)
    assert operands(lambda score, b, h, q_idx, kv_idx: score + slopes[h] + bias[kv_idx, b]) == [
        ("captured tensor", ("h",), (H,)),
        ("captured tensor", ("b", "kv_idx"), (B, S)),
    ]


def test_larger_tensors_are_cut_and_computed_indices_make_a_table():
    large, bias = torch.ones(S + 5), torch.ones(3, H, 2 * S)
    got = operands(lambda score, b, h, q_idx, kv_idx: score + large[q_idx] + bias[1, h, q_idx - kv_idx + S])
    assert got == [("captured tensor", ("q_idx",), (S,)), ("captured tensor", (), (H, 2 * S))]


def test_a_tensor_may_be_indexed_step_by_step_and_with_slices():
    bias = torch.ones(B, H, S)
    whole = operands(lambda score, b, h, q_idx, kv_idx: score + bias[b, h, kv_idx])
    assert operands(lambda score, b, h, q_idx, kv_idx: score + bias[b][h][kv_idx]) == whole
    assert operands(lambda score, b, h, q_idx, kv_idx: score + bias[:, h][b, kv_idx]) == whole
    assert operands(lambda score, b, h, q_idx, kv_idx: score + bias[..., kv_idx][b, h]) == whole


def test_what_has_no_op_is_computed_by_pytorch():
    edges, weight = torch.tensor([1, 5, 9]), torch.ones(S, 3)
    assert operands(lambda score, b, h, q_idx, kv_idx: score + torch.searchsorted(edges, q_idx) * 0.5) == [("computed by PyTorch", ("q_idx",), (S,))]
    assert operands(lambda score, b, h, q_idx, kv_idx: score + F.embedding(q_idx, weight).sum()) == [("computed by PyTorch", ("q_idx",), (S,))]
    assert operands(lambda score, b, h, q_idx, kv_idx: score + torch.lgamma(q_idx - kv_idx)) == [("computed by PyTorch", ("q_idx", "kv_idx"), (S, S))]


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda s, *i: 2 * s, "let t2 = score * 2.0"),
        (lambda s, *i: 1 - s, "let t2 = 1.0 - score"),
        (lambda s, *i: torch.clamp(s, -1, 1), "select"),
        (lambda s, *i: torch.zeros_like(s), "value = 0.0"),
        (lambda s, *i: s.masked_fill(i[2] < i[3], float("-inf")), "select(t2, -inf, score)"),
        (lambda s, *i: torch.where(i[2] >= i[3], s, torch.full_like(s, -1.5)), "select(t2, score, -1.5)"),
        (lambda s, *i: s * torch.tensor(3.0), "let t2 = score * 3.0"),
        (lambda s, *i: s + i[2] // 4, "let t3 = q_idx // 4"),
        (lambda s, *i: s + i[2] / 4, "let t4 = t2 / 4.0"),
        (lambda s, *i: s + i[2] % 4, "let t3 = q_idx % 4"),
        (lambda s, *i: F.gelu(s, approximate="tanh") + F.gelu(s), "gelu_tanh(score)"),
        (lambda s, *i: s.sigmoid() * s.pow(2), "let t2 = score * score"),
        (lambda s, *i: s.double().float(), "value = score"),
    ],
)
def test_operations_become_ops(function, text):
    assert text in value(function), value(function)


def test_any_callable_is_traced():
    def with_factor(factor, score, b, h, q_idx, kv_idx):
        return score * factor

    class Modifier(torch.nn.Module):
        def forward(self, score, b, h, q_idx, kv_idx):
            return score * 2

    assert value(functools.partial(with_factor, 2)) == value(Modifier()) == value(lambda s, b, h, q_idx, kv_idx: s * 2)


def test_programs_are_what_the_functions_compute():
    """Two lambdas of one text are two programs if they close over other numbers, and one if over the same; tensors may change in place."""
    q = torch.randn(B, H, S, 8, generator=torch.Generator().manual_seed(3))
    by = lambda factor: lambda score, b, h, q_idx, kv_idx: score * factor  # noqa: E731
    assert value(by(2)) == value(by(2)) != value(by(3))
    slopes = torch.zeros(H)
    alibi = lambda score, b, h, q_idx, kv_idx: score + slopes[h] * kv_idx  # noqa: E731
    before = flex_attention(q, q, q, alibi)
    slopes += 1
    after = flex_attention(q, q, q, alibi)
    slopes -= 1
    assert not torch.allclose(before, after) and torch.equal(flex_attention(q, q, q, alibi), before)
    factor = 1.0

    def scaled(score, b, h, q_idx, kv_idx):
        return score * factor

    first = flex_attention(q, q, q, scaled)
    factor = 3.0
    assert not torch.allclose(flex_attention(q, q, q, scaled), first)


# The line of each function is that of its `lambda`, which the message has to name.
@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (lambda s, b, h, q, k: s if q > k else -s, scoremod.InvalidArgumentError, "choose with torch.where"),
        (lambda s, b, h, q, k: s * float(q), scoremod.InvalidArgumentError, "choose with torch.where"),
        (lambda s, b, h, q, k: s * q.numpy(), scoremod.InvalidArgumentError, "choose with torch.where"),
        (lambda s, b, h, q, k: s + [1.0, 2.0][h], scoremod.InvalidArgumentError, "choose with torch.where"),
        (lambda s, b, h, q, k: s + torch.ones(3)[: q + 1].sum(), scoremod.InvalidArgumentError, "choose with torch.where"),
        (lambda s, b, h, q, k: torch.lgamma(s), scoremod.UnsupportedError, "'lgamma'"),
        (lambda s, b, h, q, k: torch.cond(q > k, torch.sin, torch.cos, (s,)), scoremod.UnsupportedError, "such as torch.cond"),
        (lambda s, b, h, q, k: s * torch.rand_like(s), scoremod.UnsupportedError, "random numbers"),
        (lambda s, b, h, q, k: s * torch.rand(()), scoremod.UnsupportedError, "random numbers"),
        (lambda s, b, h, q, k: s[None].add_(1)[0] + s, scoremod.UnsupportedError, "another one shows"),
        (lambda s, b, h, q, k: torch.mul(s, 2, out=torch.zeros_like(s)), scoremod.UnsupportedError, "another one shows"),
        (lambda s, b, h, q, k: s.detach() * s, scoremod.UnsupportedError, "stops gradients"),
        (lambda s, b, h, q, k: s.to(torch.bfloat16).float(), scoremod.UnsupportedError, "rounds the score to torch.bfloat16"),
        (lambda s, b, h, q, k: s.half(), scoremod.UnsupportedError, "rounds the score to torch.float16"),
        (lambda s, b, h, q, k: s.view(torch.int32).float(), scoremod.UnsupportedError, "takes the bits of torch.float32 for torch.int32"),
        (lambda s, b, h, q, k: q < 2**31, scoremod.InvalidArgumentError, "found 2147483648"),
        (lambda s, b, h, q, k: s + (q + 2**31 - k), scoremod.InvalidArgumentError, "found 2147483648"),
        (lambda s, b, h, q, k: (s * torch.ones(3)).sum(), scoremod.UnsupportedError, "shape .3,. of the score"),
        (lambda s, b, h, q, k: torch.nonzero(s), scoremod.UnsupportedError, "'nonzero'"),
        (lambda s, b, h, q, k: s + torch.ones(3)[q], scoremod.InvalidArgumentError, "expected a size of 16"),
    ],
)
def test_what_has_no_program_is_refused_with_the_line(function, error, message):
    with pytest.raises(error, match=message) as caught:
        traced(function)
    assert f"{__file__}:{function.__code__.co_firstlineno}" in str(caught.value)


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_captured_tensors_are_dense(layout):
    sparse, q = torch.eye(S).to_sparse(layout=layout), torch.ones(1, 1, S, 8)
    with pytest.raises(scoremod.UnsupportedError, match="expected a dense one, found layout torch.sparse"):
        flex_attention(q, q, q, lambda s, b, h, q_idx, kv_idx: s + sparse[q_idx, kv_idx])


@pytest.mark.parametrize("lengths", [[3], [3, 4, 5], (torch.tensor([3]),)])
def test_lengths_that_are_no_pair_are_refused(lengths):
    q = torch.ones(1, 1, S, 8)
    with pytest.raises(scoremod.InvalidArgumentError, match="lengths: expected an int32 or int64 tensor"):
        flex_attention(q, q, q, lengths=lengths)


def test_captured_tensors_are_not_written():
    slopes = torch.ones(H)
    with pytest.raises(scoremod.UnsupportedError, match="writes into a captured tensor"):
        traced(lambda score, b, h, q_idx, kv_idx: score + slopes.mul_(2)[h])
    for shown in (lambda: slopes[1:3], lambda: slopes.data, lambda: slopes.detach().view(2, 2)):
        with pytest.raises(scoremod.UnsupportedError, match="writes into a captured tensor"):
            traced(lambda score, b, h, q_idx, kv_idx: score + shown().add_(1).sum())  # noqa: B023
    assert slopes.eq(1).all()


def test_tensors_that_the_function_made_are_written():
    def score_mod(score, b, h, q_idx, kv_idx):
        steps, ones = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.zeros(H)
        ones[:2].add_(1)
        return score + steps.mul_(2).add_(ones)[h]

    (source,) = traced(score_mod)[1]
    assert source.tensor(torch.device("cpu")).tolist() == [3, 5, 6, 8]


@pytest.mark.parametrize(
    ("score_mod", "mask_mod", "message"),
    [
        (lambda s, b, h, q, k: q >= k, None, "score_mod: expected it to return the modified score, a float, found torch.bool"),
        (None, lambda b, h, q, k: q - k, "mask_mod: expected it to return whether the key is kept, a bool, found torch.int32"),
        (lambda s, b, h, q, k: None, None, "score_mod: expected it to return"),
        (lambda s, b, h, q, k: s[None], None, "one 0-dim tensor"),
        ("score * 2", None, "score_mod: expected a function"),
    ],
)
def test_wrong_results_are_refused(score_mod, mask_mod, message):
    with pytest.raises(scoremod.InvalidArgumentError, match=message):
        traced(score_mod, mask_mod)


def test_integers_beyond_int32_are_refused():
    ids = torch.full((S,), 2**40)
    q = torch.ones(1, 1, S, 8)
    with pytest.raises(scoremod.InvalidArgumentError, match="which int32 holds, found 1099511627776"):
        flex_attention(q, q, q, mask_mod=lambda b, h, q_idx, kv_idx: ids[q_idx] == ids[kv_idx])
    with pytest.raises(scoremod.InvalidArgumentError, match="1099511627776"):
        flex_attention(q, q, q, mask_mod=lambda b, h, q_idx, kv_idx: q_idx > 2**40)


def test_integers_wrap_as_pytorchs_do():
    """Narrow ones at their own size; products of 64-bit ones beyond 32 bits are PyTorch's."""
    small, large = torch.tensor([3, 250, 7, 1], dtype=torch.uint8), torch.tensor([2**20, 3, 5, 2**20])
    q = torch.zeros(1, 1, 4, 8)
    value = torch.eye(4, 8)[None, None]
    index = torch.arange(4)

    def weights(score_mod):
        return flex_attention(q, q, value, score_mod)[0, 0, :, :4]

    differences = (small[:, None] - small[None, :]).float() / 64
    found = weights(lambda score, b, h, q_idx, kv_idx: (small[q_idx] - small[kv_idx]).float() / 64)
    torch.testing.assert_close(found, torch.softmax(differences, dim=-1))
    products = (large[index][:, None] * large[index][None, :] // 2**38).float()
    found = weights(lambda score, b, h, q_idx, kv_idx: ((large[q_idx] * large[kv_idx]) // 2**38).float())
    torch.testing.assert_close(found, torch.softmax(products, dim=-1))


def test_negative_indices_count_from_the_end():
    table = torch.arange(5.0)
    q = torch.zeros(1, 1, 4, 8)
    value = torch.eye(4, 8)[None, None]
    shifted = flex_attention(q, q, value, lambda score, b, h, q_idx, kv_idx: table[kv_idx - 2])
    expected = torch.softmax(table[torch.arange(4) - 2], dim=0)
    torch.testing.assert_close(shifted[0, 0, 0, :4], expected)


class TestKeptTraces:
    """Functions that are what they were are traced once; whatever may make another program is seen."""

    def calls(self, monkeypatch):
        traced = []
        real = kept_traces.Tracer.trace
        monkeypatch.setattr(kept_traces.Tracer, "trace", lambda *arguments: traced.append(1) or real(*arguments))
        return traced

    def test_equal_functions_are_traced_once_for_other_tensors(self, monkeypatch):
        q = torch.randn(B, H, S, 8, generator=torch.Generator().manual_seed(1))

        def attend(slopes, factor):
            return flex_attention(q, q, q, lambda score, b, h, q_idx, kv_idx: score * factor + slopes[h] * kv_idx + 0.5)

        traced = self.calls(monkeypatch)
        one, other = torch.ones(H), torch.arange(float(H))
        results = [attend(slopes, factor) for slopes, factor in ((one, 2), (other, 2), (one, 2), (one, 3), (one.double(), 2))]
        assert len(traced) == 3
        assert torch.equal(results[0], results[2]) and torch.equal(results[0], results[4])
        assert not torch.allclose(results[0], results[1]) and not torch.allclose(results[0], results[3])

    def test_gradients_reach_the_tensors_of_each_call(self):
        q = torch.randn(B, H, S, 8, generator=torch.Generator().manual_seed(1))
        gradients = []
        for _ in range(2):
            slopes = torch.ones(H, requires_grad=True)
            flex_attention(q, q, q, lambda score, b, h, q_idx, kv_idx: score + slopes[h] * kv_idx).square().sum().backward()  # noqa: B023
            gradients.append(slopes.grad)
        assert torch.equal(*gradients) and gradients[0].abs().min() > 0

    @pytest.mark.parametrize(
        "make",
        [
            # Each reads something whose program isn't told by the function and by what its tensors look like.
            lambda tensor, holder: lambda s, b, h, q, k: s * (2.0 if tensor.item() > 0 else 3.0),
            lambda tensor, holder: lambda s, b, h, q, k: s * (2.0 if tensor > 0 else 3.0),
            lambda tensor, holder: lambda s, b, h, q, k: s * float(tensor.numpy()),
            lambda tensor, holder: lambda s, b, h, q, k: s * tensor.tolist(),
            lambda tensor, holder: lambda s, b, h, q, k: s * holder.factor,
            lambda tensor, holder: lambda s, b, h, q, k: s * _FACTOR,
            lambda tensor, holder: lambda s, b, h, q, k: s * _with_attribute.factor,
            lambda tensor, holder: lambda s, b, h, q, k: s * [holder.factor][0],
            lambda tensor, holder: lambda s, b, h, q, k: s * (1.0 + tensor[tensor > 0].numel()),
            lambda tensor, holder: lambda s, b, h, q, k: s * (1.0 + len(torch.nonzero(tensor > 0))),
            lambda tensor, holder: lambda s, b, h, q, k: s * globals()["_FACTOR"],
            lambda tensor, holder: lambda s, b, h, q, k: s * tensor.holder.factor,
            lambda tensor, holder: _importing,
        ],
    )
    def test_what_else_a_function_reads_is_seen(self, make, monkeypatch):
        q = torch.randn(B, H, S, 8, generator=torch.Generator().manual_seed(1))
        tensor, holder = torch.tensor(1.0), types.SimpleNamespace(factor=1.0)
        tensor.holder = holder
        monkeypatch.setitem(sys.modules, "holding_a_factor", holder)
        function = make(tensor, holder)
        first = flex_attention(q, q, q, function)
        assert torch.equal(flex_attention(q, q, q, function), first)
        tensor.fill_(-4.0)
        holder.factor = -4.0
        monkeypatch.setattr(sys.modules[__name__], "_FACTOR", -4.0)
        monkeypatch.setattr(_with_attribute, "factor", -4.0)
        assert not torch.allclose(flex_attention(q, q, q, function), first)

    def test_sizes_are_seen(self):
        bias = torch.randn(S, generator=torch.Generator().manual_seed(1))
        function = lambda score, b, h, q_idx, kv_idx: score + bias[kv_idx]  # noqa: E731
        q = torch.ones(1, 1, S, 8)
        flex_attention(q, q, q, function)
        longer = torch.ones(1, 1, S + 1, 8)
        with pytest.raises(scoremod.InvalidArgumentError, match="expected a size of 17"):
            flex_attention(longer, longer, longer, function)


_FACTOR = 1.0


def _with_attribute():
    pass


_with_attribute.factor = 1.0


def _importing(s, b, h, q, k):
    import holding_a_factor

    return s * holding_a_factor.factor
