"""Score functions as graph callbacks, against dense attention in float64, and their own backward callbacks held to the derived ones."""

import math
from concurrent.futures import ThreadPoolExecutor

import dense_reference as dense
import pytest
import torch

import scoremod
from scoremod import callback_graph
from scoremod.torch import backward_callbacks, fallback_counts, flex_attention, fused_attention

B, H, G, S, D = 2, 4, 2, 12, 8
METHODS = {name for name in vars(callback_graph.Graph) if not name.startswith("_") and name not in ("tensor", "functions")}


@pytest.fixture
def tensors(random):
    return [torch.randn(B, heads, S, D, generator=random) for heads in (H, G, G)]


class SoftCap:
    """Leaves its tanh for the backward callback, as users of such callbacks do."""

    def forward(self, graph, score, tensors):
        self.tanh = graph.tanh(input=graph.div(a=score, b=tensors["cap"], name="x")).set_data_type("float")
        return graph.mul(a=self.tanh, b=tensors["cap"])

    def backward(self, graph, dscore, tensors):
        return graph.mul(a=dscore, b=graph.sub(a=tensors["one"], b=graph.mul(a=self.tanh, b=self.tanh)))

    def both(self, cap, one=1.0):
        return {
            "score_mod": self.forward,
            "score_mod_tensors": {"cap": cap},
            "score_mod_bprop": self.backward,
            "score_mod_bprop_tensors": {"one": one},
        }


def causal_bias(graph, score, tensors):
    """With the data types that cudnn-frontend's own samples give."""
    row, column = (graph.gen_index(input=score, axis=axis, compute_data_type="INT32").set_data_type("INT32") for axis in (2, 3))
    keep = graph.cmp_ge(input=row, comparison=column, compute_data_type="BOOLEAN").set_data_type("BOOLEAN")
    return graph.binary_select(input0=graph.bias(input=score, bias=tensors["bias"]), input1=float("-inf"), mask=keep)


def assert_right(attention, modifier, tensors, captured, random):
    """attention(q, k, v, *captured) -> (o, lse), against the dense one with modifier(*captured) as its score_mod."""

    def modifiers(*captured):
        score_mod = modifier(*captured)
        score_mod.captured = captured
        return score_mod, None

    dense.check(lambda q, k, v, score_mod, _: attention(q, k, v, *score_mod.captured), tensors, captured, modifiers, random)


@pytest.mark.parametrize(("layout", "bprop"), [("BHSD", False), ("BSHD", True), ("SBHD", True)])
@pytest.mark.parametrize("run", [lambda function: function, lambda function: torch.compile(function, fullgraph=True, backend="aot_eager")])
def test_a_soft_cap(tensors, random, layout, bprop, run):
    cap = SoftCap()

    def attention(q, k, v, limit):
        given = cap.both(limit) if bprop else {"score_mod": cap.forward, "score_mod_tensors": {"cap": limit}}
        q, k, v = (each.permute(["BHSD".index(axis) for axis in layout]) for each in (q, k, v))
        o, lse = fused_attention(q, k, v, layout=layout, return_lse=True, **given)
        return o.permute([layout.index(axis) for axis in "BHSD"]), lse

    limit = torch.rand((), generator=random) + 1
    assert_right(run(attention), lambda c: lambda score, *_: c * torch.tanh(score / c), tensors, [limit], random)


@pytest.mark.parametrize("shape", [(1, H, 1, S), (H, S, S), (S,), (B, 1, 1, 1), ()])
def test_tensors_broadcast_and_get_gradients(tensors, random, shape):
    def attention(q, k, v, bias):
        return fused_attention(q, k, v, score_mod=causal_bias, score_mod_tensors={"bias": bias}, return_lse=True)

    modifier = lambda bias: lambda score, b, h, i, j: torch.where(i >= j, score + bias, -math.inf)  # noqa: E731
    assert_right(attention, modifier, tensors, [torch.randn(shape, generator=random)], random)


def test_sequences_and_pages_are_those_of_plain_functions(random):
    """A bias by sequence and position, beside offsets, a page table and both."""
    lengths, longest = [3, 7, 5], 8
    bias = torch.randn(3, 1, longest, longest, generator=random)
    score_mod = lambda score, b, h, i, j: torch.where(i >= j, score + bias[b, 0, i, j], -math.inf)  # noqa: E731
    fused = {"score_mod": causal_bias, "score_mod_tensors": {"bias": bias}}
    q, k, v = (torch.randn(sum(lengths), heads, D, generator=random) for heads in (H, G, G))
    offsets = torch.tensor([0, 3, 10, 15])
    pages = [torch.randn(12, G, 2, D, generator=random) for _ in "kv"]
    table, of_keys = torch.randperm(12, generator=random).view(3, 4), torch.tensor(lengths)
    dense_q = torch.randn(3, H, longest, D, generator=random)
    for query, key, value, places in [
        (q, k, v, {"q_offsets": offsets, "max_length": longest}),
        (dense_q, *pages, {"page_table": table, "lengths": of_keys}),
        (q, *pages, {"q_offsets": offsets, "page_table": table, "lengths": of_keys, "max_length": longest}),
    ]:
        found = fused_attention(query, key, value, **fused, **places)
        torch.testing.assert_close(found, flex_attention(query, key, value, score_mod, enable_gqa=True, **places), rtol=0, atol=0)
    found = fused_attention(dense_q.transpose(1, 2), *pages, layout="BSHD", **fused, page_table=table, lengths=of_keys)
    want = flex_attention(dense_q, *pages, score_mod, enable_gqa=True, page_table=table, lengths=of_keys)
    torch.testing.assert_close(found.transpose(1, 2), want, rtol=0, atol=0)


def test_equal_callbacks_are_traced_and_compared_once(tensors, nothing_compiled, traces, monkeypatch):
    compared, difference = [], backward_callbacks._difference
    monkeypatch.setattr(backward_callbacks, "_difference", lambda *x: compared.append(1) or difference(*x))
    monkeypatch.setattr(backward_callbacks, "_alike", {})
    for limit in (1.5, 2.0, 2.5):
        found = fused_attention(*tensors, **SoftCap().both(torch.tensor(limit)))
        want = flex_attention(*tensors, lambda score, *_, c=limit: c * torch.tanh(score / c), enable_gqa=True)
        torch.testing.assert_close(found, want)
    assert sum(any(type(each).__name__ == "RecordedFunction" for each in functions) for functions in traces) == 1 and len(compared) == 1
    with pytest.raises(scoremod.InvalidArgumentError, match="expected the derivative of score_mod"):
        fused_attention(*tensors, **SoftCap().both(torch.tensor(2.0), one=2.0))


def test_another_number_compiles_nothing(tensors):
    run = lambda number: fused_attention(*tensors, score_mod=SoftCap().forward, score_mod_tensors={"cap": number})  # noqa: E731
    run(1.25)
    before = scoremod.cache.statistics()["compiled"]["problems"]
    for number in (1.5, 3.0):
        want = flex_attention(*tensors, lambda score, *_, c=torch.tensor(number): c * torch.tanh(score / c), enable_gqa=True)
        torch.testing.assert_close(run(number), want)
    assert scoremod.cache.statistics()["compiled"]["problems"] <= before + 1  # that of the plain function


@pytest.mark.parametrize("run", [lambda function: function, lambda function: torch.compile(function, fullgraph=True, backend="eager")])
def test_a_wrong_backward_is_refused(tensors, run):
    def attention(cap, one):
        return fused_attention(*tensors, **SoftCap().both(cap, one))

    run(attention)(torch.tensor(2.0), 1.0)
    with pytest.raises(Exception, match="expected the derivative of score_mod"):
        run(attention)(torch.tensor(2.0), 1.5)


def test_a_backward_of_unknown_numbers_is_told(tensors):
    attention = torch.compile(lambda cap, one: fused_attention(*tensors, **SoftCap().both(cap, one)), fullgraph=True, backend="eager")
    before = fallback_counts()
    with pytest.warns(UserWarning, match="score_mod_bprop: it was not compared.*or give trust_bprop=True to have it run"):
        found = attention(torch.tensor(2.0), torch.tensor(1.0))
    assert fallback_counts() == {"uncompared_bprop": before["uncompared_bprop"] + 1}
    torch.testing.assert_close(found, fused_attention(*tensors, **SoftCap().both(torch.tensor(2.0))))


def test_a_mask_by_a_number_is_compared_where_keys_have_weight(tensors):
    def score_mod(graph, score, given):
        return graph.binary_select(score, -1e4, graph.cmp_ge(graph.gen_index(score, 2), graph.gen_index(score, 3)))

    fused_attention(*tensors, score_mod=score_mod, score_mod_bprop=lambda graph, dscore, given: dscore)


def test_one_object_serves_several_threads_at_once(tensors):
    cap = SoftCap()
    wants = {limit: flex_attention(*tensors, lambda s, *_, c=limit: c * torch.tanh(s / c), enable_gqa=True) for limit in (1.5, 2.0, 2.5, 3.0)}

    def run(limit):
        for _ in range(20):
            torch.testing.assert_close(fused_attention(*tensors, **cap.both(limit)), wants[limit])

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(run, wants))


def test_a_tensor_of_another_call_is_refused(tensors):
    kept = []

    def score_mod(graph, score, given):
        kept.append(score)
        return graph.add(kept[0], score)

    fused_attention(*tensors, score_mod=score_mod)
    with pytest.raises(scoremod.InvalidArgumentError, match="expected tensors of this graph"):
        fused_attention(*tensors, score_mod=score_mod)


F = torch.nn.functional
_UNARY = {
    **{name: getattr(torch, name) for name in ("sqrt", "rsqrt", "reciprocal", "exp", "log", "neg", "abs", "ceil", "floor", "sin", "cos", "tan", "erf", "tanh")},
    "identity": lambda x: x,
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "gelu": F.gelu,
    "sigmoid": torch.sigmoid,
    "swish": F.silu,
    "softplus": F.softplus,
    "gelu_approx_tanh": lambda x: F.gelu(x, approximate="tanh"),
}
_ACTIVATIONS = ("relu", "leaky_relu", "tanh", "sigmoid", "elu", "gelu", "gelu_approx_tanh", "softplus", "swish")
_BINARY = {
    "add": torch.add,
    "mul": torch.mul,
    "sub": torch.sub,
    "add_square": lambda a, b: a + b * b,
    "div": torch.div,
    "bias": torch.add,
    "scale": torch.mul,
    "max": torch.maximum,
    "min": torch.minimum,
    "mod": torch.fmod,
    "pow": torch.pow,
}
_COMPARISONS = {"eq": torch.eq, "neq": torch.ne, "gt": torch.gt, "ge": torch.ge, "lt": torch.lt, "le": torch.le}


def _backward_of(name, x, loss):
    """In PyTorch's own derivative, which has one itself."""
    point = x if x.requires_grad else x.detach().requires_grad_()
    with torch.enable_grad():
        return torch.autograd.grad((_UNARY[name](point) * loss).sum(), point, create_graph=True)[0]


def _cases(x, c):
    """method -> (what a graph computes of its x and c, what PyTorch does of all scores)."""
    yield from ((name, lambda g, x, c, n=name: getattr(g, n)(x), truth(x)) for name, truth in _UNARY.items())
    yield from ((name, lambda g, x, c, n=name: getattr(g, n)(x, c), truth(x, c)) for name, truth in _BINARY.items())
    yield from ((f"{name}_backward", lambda g, x, c, n=name: getattr(g, f"{n}_backward")(loss=c, input=x), _backward_of(name, x, c)) for name in _ACTIVATIONS)
    for name, truth in _COMPARISONS.items():
        yield f"cmp_{name}", lambda g, x, c, n=name: g.binary_select(x, c, getattr(g, f"cmp_{n}")(x, c)), torch.where(truth(x, c), x, c)
    for name, truth in (("logical_and", torch.logical_and), ("logical_or", torch.logical_or)):
        chosen = lambda g, x, c, n=name: g.binary_select(x, c, getattr(g, n)(g.cmp_gt(x, c), g.cmp_lt(x, 1.1)))  # noqa: E731
        yield name, chosen, torch.where(truth(x > c, x < 1.1), x, c)
    yield "logical_not", lambda g, x, c: g.binary_select(x, c, g.logical_not(g.cmp_gt(x, c))), torch.where(x > c, c, x)


def _numbers_of_cases():
    return [name for name, *_ in _cases(torch.ones(1), torch.ones(1))]


@pytest.mark.parametrize("number", range(len(_numbers_of_cases())), ids=_numbers_of_cases())
def test_each_method_is_what_pytorch_computes(tensors, random, number):
    """The numbers are between 0.6 and 1.4, and q, k and v have gradients."""
    c = torch.rand((), generator=random) * 0.2 + 0.6

    def score_mod(graph, score, given):
        x = graph.add(graph.mul(graph.tanh(score), 0.4), 1.0)
        _, build, _ = list(_cases(torch.ones(1), torch.ones(1)))[number]
        return graph.add(score, graph.mul(build(graph, x, given["c"]), given["c"]))

    def modifier():
        return lambda score, *_: score + list(_cases(torch.tanh(score) * 0.4 + 1, c.to(score.dtype)))[number][2] * c

    def attention(q, k, v):
        return fused_attention(q, k, v, score_mod=score_mod, score_mod_tensors={"c": c}, return_lse=True)

    assert_right(attention, modifier, tensors, [], random)


def test_every_method_is_tried_here():
    assert {*_numbers_of_cases(), "gen_index", "binary_select"} == METHODS


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.float16, torch.float64])
def test_tensors_of_other_dtypes(tensors, random, dtype):
    table = torch.randint(0, 2, (B, 1, 1, S), generator=random).to(dtype)

    def score_mod(graph, score, given):
        chosen = given["x"] if dtype == torch.bool else graph.cmp_gt(given["x"], 0)
        return graph.binary_select(graph.mul(score, 2), score, chosen)

    want = flex_attention(*tensors, lambda s, b, h, i, j: torch.where(table[b, 0, 0, j] > 0, s * 2, s), enable_gqa=True)
    torch.testing.assert_close(fused_attention(*tensors, score_mod=score_mod, score_mod_tensors={"x": table}), want)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"score_mod": lambda graph, score, t: t["slope"], "score_mod_tensors": {"cap": 1.0}}, ValueError, r"score_mod_tensors \('cap'\), found 'slope'"),
        (
            {"score_mod": lambda graph, score, t: graph.neg(graph.cmp_gt(score, score))},
            TypeError,
            "graph.neg: expected numbers of one type, found input of bool",
        ),
        ({"score_mod": lambda graph, score, t: graph.logical_not(score)}, TypeError, "graph.logical_not: expected truth values, found input of float32"),
        ({"score_mod_tensors": {}}, ValueError, "score_mod_tensors require score_mod"),
        ({"score_mod": causal_bias, "score_mod_bprop_tensors": {"x": 1}}, ValueError, "require score_mod_bprop"),
        ({"score_mod": 1}, TypeError, "score_mod: expected a function"),
        ({"score_mod": causal_bias, "score_mod_tensors": [1]}, TypeError, "expected a mapping"),
        ({"score_mod": causal_bias, "score_mod_tensors": {1: 1}}, TypeError, "expected names, found 1"),
        ({"score_mod": causal_bias, "score_mod_tensors": {"bias": "1"}}, TypeError, r"score_mod_tensors\['bias'\]: expected a tensor or a number, found '1'"),
        ({"score_mod": causal_bias, "score_mod_tensors": {"bias": torch.ones(3, 1)}}, ValueError, "broadcasts to"),
        ({"score_mod": lambda graph, score, t: 2.0}, TypeError, "return a tensor of the graph"),
        ({"score_mod": lambda graph, score, t: graph.add(a=score, b=torch.ones(()))}, TypeError, "a tensor of the graph or a number as 'b'"),
        ({"score_mod": lambda graph, score, t: graph.tanh(score, alpha=1)}, TypeError, "graph.tanh.*unexpected keyword argument 'alpha'"),
        ({"score_mod": lambda graph, score, t: graph.add(score)}, TypeError, "graph.add.*missing a required argument: 'b'"),
        ({"score_mod": lambda graph, score, t: score.set_data_type("HALF")}, ValueError, "set_data_type: expected FLOAT, INT32 or BOOLEAN"),
        ({"score_mod": lambda graph, score, t: graph.gen_index(score, axis=4)}, ValueError, "expected an axis from 0 to 3"),
        ({"layout": "BDSH"}, ValueError, "layout: expected BHSD, BSHD or SBHD"),
        ({"score_mod": lambda graph, score, t: score, "q_start": 3}, ValueError, "q_start: expected none beside a callback"),
        ({"score_mod": causal_bias, "trust_bprop": True}, ValueError, "trust_bprop requires score_mod_bprop"),
        ({"trust_bprop": True}, ValueError, "trust_bprop requires score_mod_bprop"),
    ],
)
def test_mistakes(tensors, arguments, error, message):
    with pytest.raises(scoremod.InvalidArgumentError, match=message) as found:
        fused_attention(*tensors, **arguments)
    assert isinstance(found.value, error)


def test_a_callback_is_not_asked_for_without_one(tensors):
    torch.testing.assert_close(fused_attention(*tensors), flex_attention(*tensors, enable_gqa=True), rtol=0, atol=0)
