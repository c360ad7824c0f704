"""PyTorch's own checks of operators, and its transformations: compile, vmap, grad, autocast, checkpoint."""

import dense_reference as dense
import modifiers
import pytest
import torch
from torch.utils.checkpoint import checkpoint

import scoremod
from scoremod.torch import flex_attention
from scoremod.call_spec import CallSpec, Offsets
from scoremod.torch.call_options import options_of
from scoremod.torch.captures import Extents
from scoremod.torch.trace import trace

B, H, S, D = 2, 4, 16, 8


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def tensors(random, *leading, grad=True):
    return [torch.randn(*leading, B, H, S, D, generator=random).requires_grad_(grad) for _ in range(3)]


def alibi(slopes):
    return lambda score, b, h, q_idx, kv_idx: score + slopes[h] * (q_idx - kv_idx)


def attend(q, k, v, slopes):
    return flex_attention(q, k, v, alibi(slopes), mask_mod=causal)


@pytest.fixture
def arguments(random):
    """The arguments of scoremod::attention_forward."""
    slopes = torch.randn(H, generator=random, requires_grad=True)
    program, _ = trace(alibi(slopes), causal, Extents((0, B), (0, H), (0, S), (0, S)), torch.device("cpu"))
    call = options_of(CallSpec(offsets=Offsets()))._replace(program=program).text()
    return (*tensors(random), [slopes], None, [0], True, True, call)


def test_operators_pass_opcheck(arguments, random):
    torch.library.opcheck(torch.ops.scoremod.attention_forward.default, arguments)
    q, k, v, slopes, _, wanted, _, _, call = [x.detach() if isinstance(x, torch.Tensor) else x for x in arguments]
    o, lse, *_ = torch.ops.scoremod.attention_forward(q, k, v, slopes, None, wanted, True, True, call)
    d_o = torch.randn(o.shape, generator=random)
    slopes = [slopes[0].detach()]
    torch.library.opcheck(torch.ops.scoremod.attention_backward.default, (q, k, v, o.detach(), lse.detach(), d_o, slopes, None, wanted, call))


@pytest.mark.filterwarnings("ignore:Input #")
def test_gradients_pass_gradcheck(arguments):
    q, k, v, (slopes,), *rest = arguments

    def function(q, k, v, slopes):
        return torch.ops.scoremod.attention_forward(q, k, v, [slopes], *rest)[:2]

    # In float32 a difference of 1e-2 has an error of some 1e-3.
    assert torch.autograd.gradcheck(function, (q, k, v, slopes), eps=1e-2, atol=1e-2, rtol=1e-2)
    with pytest.raises(RuntimeError, match="Jacobian mismatch"):
        torch.autograd.gradcheck(lambda *x: function(x[0], x[1], x[2], x[3] * 1.0)[0] + x[3].detach().sum() * x[0].sum(), (q, k, v, slopes), eps=1e-2)


def test_second_derivatives_are_refused(random):
    q, k, v = tensors(random)
    (gradient,) = torch.autograd.grad(attend(q, k, v, torch.ones(H)).square().sum(), q, create_graph=True)
    with pytest.raises(scoremod.UnsupportedError, match="differentiated twice"):
        gradient.sum().backward()


def in_place(factor):
    x = torch.zeros(())
    x.add_(factor)
    x += factor
    return x


# A factor of a function's own text and of a captured number. Transformations wrap what PyTorch makes.
MADE_OF_CONSTANTS = {
    "a constant": lambda factor: torch.tensor(2.0) * factor,
    "a filled tensor": lambda factor: torch.full((), 1.5) + torch.ones_like(factor) * factor,
    "a choice": lambda factor: torch.where(factor < 0, 1.5, factor),
    "a copy": lambda factor: torch.tensor(2.0).clone() + factor,
    "a stack": lambda factor: torch.stack([factor, torch.tensor(2.0)]).sum(),
    "a function": lambda factor: torch.nn.functional.softplus(torch.tensor(2.0) * factor),
    "in place": in_place,
}


@pytest.mark.parametrize("name", MADE_OF_CONSTANTS)
def test_constants_that_functions_make_within_torch_func(name, random):
    """Their placeholders' memory holds anything."""
    q, k, v = tensors(random, grad=False)
    factors = torch.rand(2, generator=random) + 0.5

    def loss(q, factor):
        score_mod = lambda score, b, h, i, j: torch.where(i >= j, score * MADE_OF_CONSTANTS[name](factor), torch.tensor(-torch.inf))  # noqa: E731
        return flex_attention(q, k, v, score_mod).square().sum()

    wanted = []
    for factor in factors:
        leaves = q.clone().requires_grad_(), factor.clone().requires_grad_()
        wanted.append((*torch.autograd.grad(loss(*leaves), leaves), loss(q, factor)))
    gradients = torch.func.grad_and_value(loss, argnums=(0, 1))
    for found, want in zip((gradients(q, factor) for factor in factors), wanted):
        torch.testing.assert_close((*found[0], found[1]), want, rtol=1e-4, atol=1e-4)
    (d_q, d_factor), value = torch.func.vmap(gradients, in_dims=(None, 0))(q, factors)
    torch.testing.assert_close((d_q, d_factor, value), tuple(map(torch.stack, zip(*wanted))), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.func.vmap(loss, in_dims=(None, 0))(q, factors), value, rtol=1e-4, atol=1e-4)


def test_vmap_and_grad_of_torch_func(random):
    q, k, v = tensors(random, 3, grad=False)
    slopes = torch.randn(3, H, generator=random)
    mapped = torch.vmap(attend)(q, k, v, slopes)
    assert torch.equal(mapped, torch.stack([attend(*each) for each in zip(q, k, v, slopes)]))
    shared = torch.vmap(attend, in_dims=(0, None, None, None))(q, k[0], v[0], slopes[0])
    assert torch.equal(shared, torch.stack([attend(each, k[0], v[0], slopes[0]) for each in q]))

    def loss(q, k, v, slopes):
        return attend(q, k, v, slopes).square().sum()

    gradients = torch.vmap(torch.func.grad(loss, argnums=(0, 1, 2, 3)))(q, k, v, slopes)
    for i, each in enumerate(zip(q, k, v, slopes)):
        leaves = [x.clone().requires_grad_() for x in each]
        expected = torch.autograd.grad(loss(*leaves), leaves)
        for found, wanted in zip(gradients, expected):
            torch.testing.assert_close(found[i], wanted, rtol=1e-5, atol=1e-5)


def test_autocast(random):
    q, k, v = tensors(random)
    slopes = torch.randn(H, generator=random)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        o = attend(q, k, v, slopes)
    assert o.dtype == torch.bfloat16
    assert torch.equal(o, attend(*(x.bfloat16() for x in (q, k, v)), slopes))
    o.sum().backward()
    assert q.grad.dtype == torch.float32


@pytest.mark.parametrize("transform", [torch.func.hessian, torch.func.jacfwd, lambda f: lambda x: torch.func.jvp(torch.func.grad(f), (x,), (x,))])
def test_forward_mode_is_refused_by_name(transform, random):
    q, k, v = tensors(random, grad=False)
    with pytest.raises(scoremod.UnsupportedError, match="reverse mode only"):
        transform(lambda slopes: attend(q, k, v, slopes).square().sum())(torch.ones(H))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("queries", "keys", "batch"), [(0, S, B), (S, 0, B), (0, 0, B), (S, S, 0)])
def test_calls_of_nothing_have_gradients_of_zero(queries, keys, batch, compiled, random):
    """All inputs of an empty call have gradients, captured tensors included: without one, other processes that add theirs to it would wait."""
    q, k, v = (torch.randn(batch, H, n, D, generator=random, requires_grad=True) for n in (queries, keys, keys))
    slopes, sink = (torch.randn(H, generator=random, requires_grad=True) for _ in range(2))

    def attend_with_sink(*given):
        *qkv, slopes, sink = given
        return flex_attention(*qkv, alibi(slopes), mask_mod=causal, sink=sink, return_lse=True)

    attend = torch.compile(attend_with_sink, backend="aot_eager", fullgraph=True) if compiled else attend_with_sink
    leaves = [q, k, v, slopes, sink]
    o, lse = attend(*leaves)
    assert o.shape == q.shape and not o.any() and torch.equal(lse, sink.detach()[:, None].expand_as(lse))
    assert all(not each.any() for each in torch.autograd.grad(o.sum(), leaves, retain_graph=True))
    *others, of_sink = torch.autograd.grad(lse.sum(), leaves)
    assert all(not each.any() for each in others) and torch.equal(of_sink, torch.full((H,), float(batch * queries)))
    torch._dynamo.reset()


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_activation_checkpointing(use_reentrant, random):
    q, k, v = tensors(random)
    slopes = torch.randn(H, generator=random, requires_grad=True)
    expected = torch.autograd.grad(attend(q, k, v, slopes).square().sum(), (q, k, v, slopes))
    o = checkpoint(attend, q, k, v, slopes, use_reentrant=use_reentrant)
    o.square().sum().backward()
    for found, wanted in zip((q.grad, k.grad, v.grad, slopes.grad), expected):
        assert torch.equal(found, wanted)


def test_nothing_is_kept_for_a_backward_that_does_not_come(random):
    q, k, v = tensors(random)
    with torch.no_grad():
        assert attend(q, k, v, torch.ones(H)).grad_fn is None
    with torch.inference_mode():
        attend(q, k, v, torch.ones(H))


def test_only_the_wanted_gradients_are_computed(random):
    q, k, v = tensors(random, grad=False)
    slopes = torch.randn(H, generator=random, requires_grad=True)
    o = attend(q, k, v, slopes)
    (gradient,) = torch.autograd.grad(o.square().sum(), slopes)
    q.requires_grad_()
    (expected, _) = torch.autograd.grad(attend(q, k, v, slopes).square().sum(), (slopes, q))
    assert torch.equal(gradient, expected)


@pytest.mark.parametrize("name", modifiers.NAMES)
def test_views_of_one_operand_have_their_gradients(name, random):
    """Twice in one graph: gradients of two calls are added."""
    captured, make = modifiers.cases((B, H, S, S), random)[name]

    def twice(q, k, v, score_mod, mask_mod):
        o, lse = flex_attention(q, k, v, score_mod, mask_mod=mask_mod, return_lse=True)
        return flex_attention(o, k, v, score_mod, mask_mod=mask_mod, return_lse=True)

    def dense_twice(q, k, v, score_mod, mask_mod):
        o, _ = dense.attention_and_lse(q, k, v, score_mod, mask_mod)
        return dense.attention_and_lse(o, k, v, score_mod, mask_mod)

    weights = [torch.randn(B, H, S, D, generator=random), torch.randn(B, H, S, generator=random)]
    given = [*(x.detach() for x in tensors(random)), *captured]
    found = dense.results(lambda q, k, v, *x: twice(q, k, v, *make(*x)), given, weights)
    plain = dense.results(lambda q, k, v, *x: dense_twice(q, k, v, *make(*x)), given, weights)
    truth = dense.results(lambda q, k, v, *x: dense_twice(q, k, v, *make(*x)), dense.widened(given), dense.widened(weights))
    dense.assert_close(found, plain, truth, dense.NAMES)
