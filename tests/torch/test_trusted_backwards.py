"""Backward callbacks that are trusted: gradients by the score are the given ones, others are derived, and what no program can hold is refused."""

import math

import dense_reference as dense
import pytest
import torch

import scoremod
from scoremod.torch import explain, flex_attention, fused_attention

B, H, G, S, D = 2, 4, 2, 12, 8


@pytest.fixture
def tensors(random):
    return [torch.randn(B, heads, S, D, generator=random) for heads in (H, G, G)]


def limited(graph, score, tensors):
    """score within +-cap, below a causal mask. It leaves its keep for the backward."""
    graph.keep = graph.cmp_ge(graph.gen_index(score, 2), graph.gen_index(score, 3))
    graph.square = graph.mul(graph.tanh(score), graph.tanh(score))
    return graph.binary_select(graph.max(graph.min(score, tensors["cap"]), graph.mul(tensors["cap"], -1.0)), float("-inf"), graph.keep)


def given(graph, dscore, tensors):
    """It reads what the forward made. What it gives of keys that are not kept has no influence."""
    slope = graph.add(tensors["slope"], graph.square)
    return graph.mul(graph.binary_select(dscore, 0.0, graph.keep), graph.binary_select(slope, float("nan"), graph.keep))


class Limited(torch.autograd.Function):
    """limited() without its mask, of all scores, with the derivatives that are expected."""

    @staticmethod
    def forward(context, score, cap, slope):
        context.save_for_backward(score, cap, slope)
        return torch.maximum(torch.minimum(score, cap), -cap)

    @staticmethod
    def backward(context, d):
        score, cap, slope = context.saved_tensors
        d_cap = (d * ((score > cap).to(d.dtype) - (score < -cap).to(d.dtype))).sum()
        return d * (slope + torch.tanh(score) ** 2), d_cap.reshape(cap.shape), torch.zeros_like(slope)


def trusted(q, k, v, cap, slope, **options):
    callbacks = {"score_mod": limited, "score_mod_bprop": given, "score_mod_tensors": {"cap": cap}, "score_mod_bprop_tensors": {"slope": slope}}
    return fused_attention(q, k, v, return_lse=True, trust_bprop=True, **callbacks, **options)


def drawn(random, shape=()):
    """A cap that limits some scores, and slopes."""
    return torch.rand((), generator=random) * 0.5 + 0.5, torch.rand(shape, generator=random) + 0.5


EAGER, COMPILED = lambda function: function, lambda function: torch.compile(function, fullgraph=True, backend="aot_eager")


@pytest.mark.parametrize(
    ("shape", "run", "backend"),
    [((), EAGER, "cpu"), ((H, 1, 1), EAGER, "cpu"), ((S,), EAGER, "reference"), ((), COMPILED, "cpu"), ((S,), COMPILED, "cpu")],
)
def test_gradients_are_the_given_ones(tensors, random, shape, run, backend):
    def modifiers(cap, slope):
        score_mod = lambda score, b, h, i, j: torch.where(i >= j, Limited.apply(score, cap, slope), -math.inf)  # noqa: E731
        score_mod.captured = cap, slope
        return score_mod, None

    attention = run(lambda *x: trusted(*x, backends=[backend]))
    dense.check(lambda q, k, v, score_mod, _: attention(q, k, v, *score_mod.captured), tensors, drawn(random, shape), modifiers, random)


def test_a_trusted_derivative_is_the_derived_one_where_they_are_equal(tensors, random):
    cap, d_o = torch.rand((), generator=random) + 1, torch.randn(B, H, S, D, generator=random)

    def soft_cap(graph, score, tensors):
        graph.of_score = graph.tanh(graph.div(score, tensors["cap"]))
        return graph.mul(graph.of_score, tensors["cap"])

    def backward(graph, dscore, tensors):
        return graph.sub(dscore, graph.mul(dscore, graph.mul(graph.of_score, graph.of_score)))

    def gradients(**options):
        leaves = [x.clone().requires_grad_() for x in (*tensors, cap)]
        o = fused_attention(*leaves[:3], score_mod=soft_cap, score_mod_tensors={"cap": leaves[3]}, **options)
        return torch.autograd.grad(o, leaves, d_o)

    derived, own = gradients(), gradients(score_mod_bprop=backward, trust_bprop=True)
    for one, other in zip(derived, own):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("run", [EAGER, COMPILED])
def test_without_trust_it_is_refused(tensors, random, run):
    cap, slope = drawn(random)
    callbacks = {"score_mod": limited, "score_mod_bprop": given, "score_mod_tensors": {"cap": cap}}
    call = run(lambda q, k, v, slope: fused_attention(q, k, v, score_mod_bprop_tensors={"slope": slope}, **callbacks))
    with pytest.raises(Exception, match=r"expected the derivative of score_mod.* samples differ\); leave it out.*or give trust_bprop=True"):
        call(*tensors, 0.75)


def test_a_trusted_and_a_derived_derivative_are_two_traces(tensors, traces):
    """The callbacks run at each call; what they build is traced once."""
    d_o = torch.randn(B, H, S, D)

    def d_query(factor, trust):
        query = tensors[0].clone().requires_grad_()
        double = {"score_mod": lambda graph, score, tensors: graph.mul(score, 2.0)}
        own = {"score_mod_bprop": lambda graph, dscore, tensors: graph.mul(dscore, factor), "trust_bprop": True} if trust else {}
        return torch.autograd.grad(fused_attention(query, *tensors[1:], **double, **own), query, d_o)[0]

    derived = d_query(2.0, False)
    for factor in (2.0, 3.0, 2.0, 3.0):
        torch.testing.assert_close(d_query(factor, True), derived * (factor / 2))
    torch.testing.assert_close(d_query(2.0, False), derived)
    assert sum(any(type(each).__name__ == "RecordedFunction" for each in functions) for functions in traces) == 3


def test_tensors_of_the_backward_have_no_gradients(tensors, random):
    cap, slope = (x.requires_grad_() for x in drawn(random))
    q = tensors[0].requires_grad_()
    _, d_slope = torch.autograd.grad(trusted(q, *tensors[1:], cap, slope)[0].sum(), [q, slope], allow_unused=True)
    assert d_slope is None or d_slope == 0


def test_one_tensor_of_both_callbacks_is_one_operand(tensors):
    bias = torch.ones(S, S)
    own = {
        "score_mod_bprop": lambda graph, dscore, tensors: graph.mul(dscore, tensors["again"]),
        "score_mod_bprop_tensors": {"again": bias},
        "trust_bprop": True,
    }
    explained = explain(*tensors, lambda graph, score, tensors: graph.add(score, tensors["bias"]), score_mod_tensors={"bias": bias}, **own)
    assert len(explained.operands) == 1 and "d_score = upstream * x0" in str(explained)


def test_transformations_of_functions(tensors, random):
    cap, slopes = drawn(random, (3,))
    loss = lambda q, cap, slope: trusted(q, *tensors[1:], cap, slope)[0].square().sum()  # noqa: E731
    d_q, d_cap, d_slope = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2)), in_dims=(None, None, 0))(tensors[0], cap, slopes)
    for i, slope in enumerate(slopes):
        q, limit = tensors[0].clone().requires_grad_(), cap.clone().requires_grad_()
        want = torch.autograd.grad(loss(q, limit, slope), [q, limit])
        torch.testing.assert_close((d_q[i], d_cap[i]), want, rtol=1e-4, atol=1e-4)
    assert torch.equal(d_slope, torch.zeros(3))


def test_varlen_sequences(random):
    lengths = [3, 7, 5]
    tokens = [torch.randn(sum(lengths), heads, D, generator=random).requires_grad_() for heads in (H, G, G)]
    cap, slope = drawn(random, (3, 1, 1, 1))
    d_o = torch.randn(sum(lengths), H, D, generator=random)
    o, _ = trusted(*tokens, cap, slope, q_offsets=torch.tensor([0, 3, 10, 15]), max_length=7)
    found = torch.autograd.grad(o, tokens, d_o)
    parts, begin = [], 0
    for length, factor in zip(lengths, slope):
        rows = slice(begin, begin + length)
        own = [x[rows].detach().transpose(0, 1)[None].requires_grad_() for x in tokens]
        o, _ = trusted(*own, cap, factor)
        parts.append([x[0].transpose(0, 1) for x in torch.autograd.grad(o, own, d_o[rows].transpose(0, 1)[None])])
        begin += length
    for one, others in zip(found, zip(*parts)):
        torch.testing.assert_close(one, torch.cat(others), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("backward", "is_multiple"),
    [
        (lambda g, d, s: g.binary_select(d, 0.0, g.cmp_gt(s, 0.0)), True),
        (lambda g, d, s: g.binary_select(d, 0.5, g.cmp_gt(s, 0.0)), False),
        (lambda g, d, s: g.binary_select(d, 0.0, g.cmp_gt(d, 0.0)), False),
        (lambda g, d, s: g.sub(g.div(d, g.add_square(1.0, s)), g.scale(d, 2.0)), True),
        (lambda g, d, s: g.div(s, d), False),
        (lambda g, d, s: g.add(d, s), False),
        (lambda g, d, s: g.mul(d, d), False),
        (lambda g, d, s: g.mul(g.abs(d), 0.0), False),
        (lambda g, d, s: g.max(g.min(d, 1.0), -1.0), False),
        (lambda g, d, s: s, False),
        (lambda g, d, s: g.neg(g.gelu_backward(loss=d, input=s)), True),
        (lambda g, d, s: g.mul(s, 0.0), False),
        (lambda g, d, s: g.binary_select(0.0, 0, g.cmp_gt(s, 0.0)), False),
        (lambda g, d, s: g.sub(d, d), True),
        (lambda g, d, s: g.identity(g.bias(0.0, g.neg(0.0))), False),
    ],
)
def test_which_backwards_are_multiples(tensors, backward, is_multiple):
    kept = []

    def score_mod(graph, score, tensors):
        kept[:] = [score]
        return graph.mul(score, 2.0)

    call = lambda: fused_attention(  # noqa: E731
        *tensors, score_mod=score_mod, score_mod_bprop=lambda graph, dscore, tensors: backward(graph, dscore, kept[0]), trust_bprop=True
    )
    if is_multiple:
        torch.testing.assert_close(call(), flex_attention(*tensors, lambda score, *_: 2 * score, enable_gqa=True))
        return
    with pytest.raises(scoremod.UnsupportedError, match="is not known to be a multiple of the gradient.*multiply dscore by"):
        call()
