"""flex_attention inside torch.compile(fullgraph=True): the same numbers, forward and backward, without a graph break."""

import modifiers
import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import scoremod
from scoremod.torch import flex_attention

B, H, S, D = 2, 4, 19, 8


@pytest.fixture(autouse=True)
def afresh():
    torch._dynamo.reset()


def tensors(random, seq=S):
    return [torch.randn(B, H, seq, D, generator=random, requires_grad=True) for _ in range(3)]


def both(function, random, leaves, backend, dynamic=None):
    """Outputs and gradients of function(q, k, v), compiled and not."""
    results = []
    for run in (torch.compile(function, fullgraph=True, backend=backend, dynamic=dynamic), function):
        o, lse = run(*leaves[:3])
        weight = torch.randn(o.shape, generator=random.manual_seed(5))
        loss = (o * weight).sum() + torch.where(lse.isneginf(), 0, lse).sum()
        results.append([o, lse, *torch.autograd.grad(loss, leaves)])
    return results


def assert_same(compiled, eager):
    for found, expected in zip(compiled, eager, strict=True):
        torch.testing.assert_close(found, expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", modifiers.NAMES)
def test_each_modifier(name, dynamic, random):
    """Its functions close over the captured tensors."""
    captured, make = modifiers.cases((B, H, S, S), random)[name]
    captured = [x.requires_grad_() for x in captured]
    score_mod, mask_mod = make(*captured)

    def function(q, k, v):
        return flex_attention(q * 1.5, k, v, score_mod, mask_mod=mask_mod, return_lse=True)

    assert_same(*both(function, random, [*tensors(random), *captured], "aot_eager", dynamic))


def test_functions_made_inside_and_parameters_of_a_module(random):
    class Attention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.slopes = torch.nn.Parameter(torch.randn(H, generator=random))
            self.cap = torch.nn.Parameter(torch.tensor(5.0))

        def forward(self, q, k, v):
            def score_mod(score, b, h, q_idx, kv_idx):
                return self.cap * torch.tanh((score + self.slopes[h] * (kv_idx - q_idx)) / self.cap)

            return flex_attention(q, k, v, score_mod, mask_mod=lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, return_lse=True)

    module = Attention()
    assert_same(*both(module, random, [*tensors(random), module.slopes, module.cap], "aot_eager"))


@pytest.mark.parametrize(
    "parts", [lambda x: (x[0], x[1], x[2]), lambda x: (x[0], x[0], x[0]), lambda x: (x[0], x[1], x[1])], ids=["of one tensor", "one tensor", "key is value"]
)
def test_tensors_may_share_memory(parts, random):
    packed, slopes = torch.randn(3, B, H, S, D, generator=random, requires_grad=True), torch.randn(H, generator=random, requires_grad=True)

    def function(packed, *_):
        q, k, v = parts(packed)

        def score_mod(score, b, h, q_idx, kv_idx):
            return score + slopes[h] * q[b, h, kv_idx, 0]  # which may be the query, too

        return flex_attention(q, k, v, score_mod, return_lse=True)

    assert_same(*both(function, random, [packed, slopes], "aot_eager"))


def test_inductor(random):
    slopes = torch.randn(H, generator=random, requires_grad=True)

    def function(q, k, v):
        return flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: score + slopes[h] * kv_idx, return_lse=True)

    assert_same(*both(function, random, [*tensors(random), slopes], "inductor"))


def test_one_graph_serves_all_lengths(random):
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    slopes = torch.randn(H, generator=random)

    def function(q, k, v):
        return flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: score + slopes[h] * kv_idx, mask_mod=lambda b, h, q_idx, kv_idx: q_idx >= kv_idx)

    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=backend)
    for seq in (16, 23, 40):
        q, k, v = tensors(random, seq)
        assert torch.equal(compiled(q, k, v), function(q, k, v))
    assert len(graphs) == 1


def test_captured_tensors_at_lengths_that_a_graph_leaves_open(random):
    slopes, cap = torch.randn(H, generator=random, requires_grad=True), torch.tensor(5.0, requires_grad=True)
    ids = torch.randint(0, 3, (B, 40), generator=random)

    def function(q, k, v, *_):
        def score_mod(score, b, h, q_idx, kv_idx):
            return cap * torch.tanh((score + slopes[h] * (kv_idx - q_idx)) / cap)

        return flex_attention(q, k, v, score_mod, mask_mod=lambda b, h, q_idx, kv_idx: ids[b, q_idx] == ids[b, kv_idx], return_lse=True)

    for seq in (16, 23, 40):  # from the second on the length is open
        assert_same(*both(function, random, [*tensors(random, seq), slopes, cap], "aot_eager"))


def test_numbers_that_a_graph_leaves_open(random):
    """The second call makes torch.compile take what changed for open."""

    def function(q, factor, rate):
        of_dim = flex_attention(q, q, q, scale=q.shape[-1] ** -0.5 / 2), flex_attention(q, q, q, scale=q.shape[-1])
        return (
            *of_dim,
            flex_attention(q, q, q, scale=factor),
            flex_attention(q, q, q, dropout_p=rate),
            flex_attention(q, q, q, mask_mod=lambda b, h, i, j: i - 12 >= j, offsets=(0, 0, q.shape[-1], 0)),
        )

    for dynamic in (None, True):
        compiled = torch.compile(function, fullgraph=True, dynamic=dynamic, backend="aot_eager")
        for dim, factor, rate in ((8, 0.3, 0.1), (16, 0.5, 0.2), (24, 0.7, 0.3)):
            q = torch.randn(B, H, S, dim, generator=random)
            results = []
            for run in (compiled, function):
                torch.manual_seed(1)
                results.append(run(q, factor, rate))
            for found, expected in zip(*results, strict=True):
                assert torch.equal(found, expected)
        torch._dynamo.reset()


def test_a_program_is_exported_with_open_sizes(random):
    class Attention(torch.nn.Module):
        def forward(self, q):
            return flex_attention(q, q, q, lambda s, b, h, i, j: 2 * s, mask_mod=lambda b, h, i, j: i >= j)

    q = tensors(random, 16)[0].detach()
    exported = torch.export.export(Attention(), (q,), dynamic_shapes=({2: torch.export.Dim("length", min=4)},)).module()
    for seq in (16, 9):
        assert torch.equal(exported(q[:, :, :seq].clone()), Attention()(q[:, :, :seq].clone()))


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_program_is_saved_and_loaded(strict, random, tmp_path):
    """Nothing of what is but traced is in its graph: placeholders as constants, and gradients turned off around nothing, which PyTorch doesn't load."""

    class Attention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.slopes, self.table = (torch.nn.Parameter(torch.randn(n, generator=random)) for n in (H, 64))
            self.register_buffer("documents", torch.arange(64) // 5)

        def forward(self, q):
            def score_mod(score, b, h, q_idx, kv_idx):
                mixed = torch.where(q_idx > kv_idx, self.table[q_idx] * self.table[kv_idx], self.slopes[h])
                return score + self.slopes.exp()[h] * (kv_idx - q_idx) / 8 + mixed

            return flex_attention(q, q, q, score_mod, mask_mod=lambda b, h, q_idx, kv_idx: self.documents[q_idx] == self.documents[kv_idx])

    module, q = Attention(), tensors(random, 16)[0].detach()
    exported = torch.export.export(module, (q,), dynamic_shapes=({2: torch.export.Dim("length", min=4, max=64)},), strict=strict)
    torch.export.save(exported, tmp_path / "attention.pt2")
    loaded = torch.export.load(tmp_path / "attention.pt2").module()
    for seq in (16, 9, 64):  # the last is all that the tensors have
        other = torch.randn(B, H, seq, D, generator=random)
        torch.testing.assert_close(loaded(other), module(other))
    for each in (loaded, module):
        each(q).square().sum().backward()
    for name, parameter in loaded.named_parameters():
        torch.testing.assert_close(parameter.grad, module.get_parameter(name).grad)
    if not strict:  # where Dynamo's graph of the functions is within
        names = {str(node.target) for node in exported.graph.nodes if node.op == "placeholder"}
        assert names == {"p_slopes", "p_table", "b_documents", "q"}, names
        assert not any("set_grad_enabled" in str(node.target) for node in exported.graph.nodes)


def test_what_changes_is_seen(random):
    """A changed number is another graph, a captured tensor that was changed in place the same."""
    q, k, v = tensors(random)
    slopes, factor = torch.zeros(H), 1.0

    def function(q, k, v):
        return flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: score * factor + slopes[h] * kv_idx)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    first = compiled(q, k, v)
    slopes += 1
    second = compiled(q, k, v)
    factor = 3.0
    third = compiled(q, k, v)
    assert torch.equal(third, function(q, k, v)) and not torch.allclose(first, second) and not torch.allclose(second, third)


def test_what_is_refused_is_refused_when_compiled(random):
    q, k, v = tensors(random)
    compiled = torch.compile(lambda q: flex_attention(q, k, v, lambda s, *i: torch.lgamma(s)), fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match="'lgamma'") as caught:
        compiled(q)
    assert isinstance(caught.value.__cause__ or caught.value, (scoremod.UnsupportedError, torch._dynamo.exc.BackendCompilerFailed))


def test_open_sizes_make_one_graph(random):
    """A default number that the compiler leaves open would cost a graph without any operation, which is thrown away."""
    counter = CompileCounterWithBackend("inductor")
    torch.compile(flex_attention, fullgraph=True, backend=counter, dynamic=True)(*(x.detach() for x in tensors(random)))
    assert counter.frame_count == 1


def test_sizes_that_the_compiler_knows_nothing_of(random):
    """torch._dynamo.mark_unbacked: no guard may ask for the number, and one graph serves all."""
    compiled = torch.compile(lambda q, k, v: attention(q, k, v), fullgraph=True, backend="aot_eager")
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for length in (24, 40):
        tensors = [torch.randn(2, 3, length, 16, generator=random).requires_grad_() for _ in range(3)]
        for tensor in tensors:
            torch._dynamo.decorators.mark_unbacked(tensor, 2)
        found, expected = compiled(*tensors), attention(*tensors)
        torch.testing.assert_close(found, expected)
        for one, other in zip(torch.autograd.grad(found.sum(), tensors), torch.autograd.grad(expected.sum(), tensors), strict=True):
            torch.testing.assert_close(one, other)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] - before == 1


def attention(q, k, v):
    return flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: score * 0.5, mask_mod=lambda b, h, q_idx, kv_idx: q_idx >= kv_idx)
