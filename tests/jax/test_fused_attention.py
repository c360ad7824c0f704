"""Score functions as graph callbacks, and their own backward callbacks held to the derived ones."""

import inspect
import os
import random
from concurrent.futures import ThreadPoolExecutor

import dense_reference as dense
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scoremod
from scoremod import callback_graph
from scoremod.jax import explain, flex_attention, fused_attention, graph_callback, support
from scoremod.jax.fused_attention import graph_modifier
from scoremod.jax.graph import Graph, Tensor

B, S, H, D = 2, 12, 2, 8
METHODS = {name for name in vars(callback_graph.Graph) if not name.startswith("_") and name not in ("tensor", "functions")}
Q, K, V = (dense.random_array(i, (B, S, H, D)) for i in range(3))


class SoftCap:
    """Leaves its tanh for the backward callback, as users of such callbacks do."""

    def forward(self, graph, score, tensors):
        self.tanh = graph.tanh(input=graph.div(a=score, b=tensors["cap"], name="x")).set_data_type("float")
        return graph.mul(a=self.tanh, b=tensors["cap"])

    def backward(self, graph, dscore, tensors):
        slope = graph.sub(a=tensors["one"], b=graph.mul(a=self.tanh, b=self.tanh))
        return graph.mul(a=dscore, b=slope)


def causal_bias(graph, score, tensors):
    row, column = graph.gen_index(input=score, axis=2), graph.gen_index(input=score, axis=3)
    keep = graph.cmp_ge(input=row, comparison=column)
    return graph.binary_select(input0=graph.bias(input=score, bias=tensors["bias"]), input1=tensors["low"], mask=keep)


@pytest.mark.parametrize("bprop", [False, True])
def test_soft_cap(bprop):
    cap = SoftCap()
    backward = {"score_mod_bprop": cap.backward, "score_mod_bprop_tensors": {"one": 1.0}} if bprop else {}

    def loss(q, limit):
        return (fused_attention(q, K, V, score_mod=cap.forward, score_mod_tensors={"cap": limit}, **backward) ** 2).sum()

    want = lambda q, c: (flex_attention(q, K, V, lambda score, *_: c * jnp.tanh(score / c)) ** 2).sum()  # noqa: E731
    got = jax.jit(jax.grad(loss, argnums=(0, 1)))(Q, jnp.float32(2))
    for x, y in zip(got, jax.grad(want, argnums=(0, 1))(Q, jnp.float32(2))):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def test_arrays_broadcast_and_get_gradients():
    bias = dense.random_array(5, (1, H, 1, S))

    def of(attention, bias):
        return (attention(bias) ** 2).sum()

    got = lambda x: fused_attention(Q, K, V, score_mod=causal_bias, score_mod_tensors={"bias": x, "low": -np.inf})  # noqa: E731
    modifier = lambda x: lambda s, b, h, i, j: jnp.where(i >= j, s + x[0, h, 0, j], -jnp.inf)  # noqa: E731
    want = lambda x: dense.attention(Q, K, V, modifier(x))  # noqa: E731
    np.testing.assert_allclose(got(bias), want(bias), atol=1e-5)
    gradients = [jax.grad(lambda x, f=f: of(f, x))(bias) for f in (got, want)]
    np.testing.assert_allclose(*gradients, atol=1e-4)


def test_a_wrong_backward_is_refused():
    cap = SoftCap()
    for wrong in (lambda graph, dscore, tensors: dscore, lambda graph, dscore, tensors: graph.neg(input=cap.backward(graph, dscore, tensors))):
        with pytest.raises(scoremod.InvalidArgumentError, match="expected the derivative of score_mod"):
            fused_attention(
                Q, K, V, score_mod=cap.forward, score_mod_tensors={"cap": 2.0}, score_mod_bprop=wrong,
                score_mod_bprop_tensors={"one": 1.0},
            )  # fmt: skip


def _cap_with(names):
    """A soft cap and its derivative, which has the cap and its inverse by other names."""

    def backward(graph, dscore, tensors):
        t = graph.tanh(graph.mul(backward.score, tensors[names[1]]))
        one = graph.mul(tensors[names[0]], tensors[names[1]])
        return graph.mul(dscore, graph.sub(one, graph.mul(t, t)))

    def forward(graph, score, tensors):
        backward.score = score
        return graph.mul(graph.tanh(graph.div(score, tensors["cap"])), tensors["cap"])

    return {"score_mod": forward, "score_mod_bprop": backward}


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit, jax.grad, lambda f: jax.jit(jax.grad(f))])
def test_a_backward_with_renamed_and_computed_tensors(transform):
    def loss(cap):
        tensors = {"score_mod_tensors": {"cap": cap}, "score_mod_bprop_tensors": {"limit": cap, "cap": 1 / cap}}
        return fused_attention(Q, K, V, **_cap_with(("limit", "cap")), **tensors).sum()

    want = lambda cap: flex_attention(Q, K, V, lambda score, *_: cap * jnp.tanh(score / cap)).sum()  # noqa: E731
    np.testing.assert_allclose(transform(loss)(jnp.float32(2)), transform(want)(jnp.float32(2)), rtol=1e-5)


def test_a_wrong_backward_with_a_renamed_tensor_is_refused_under_jit():
    wrong = lambda graph, dscore, tensors: graph.mul(dscore, tensors["limit"])  # noqa: E731
    right = lambda graph, dscore, tensors: graph.div(dscore, tensors["limit"])  # noqa: E731
    score_mod = lambda graph, score, tensors: graph.div(score, tensors["cap"])  # noqa: E731

    def run(bprop):
        def attention(cap):
            tensors = {"score_mod_tensors": {"cap": cap}, "score_mod_bprop_tensors": {"limit": cap}}
            return fused_attention(Q, K, V, score_mod=score_mod, score_mod_bprop=bprop, **tensors)

        return jax.jit(attention)(jnp.float32(3))

    run(right)
    with pytest.raises(scoremod.InvalidArgumentError, match="expected the derivative of score_mod"):
        run(wrong)


@pytest.mark.parametrize(
    ("score_mod", "bprop"),
    [
        # A causal mask by a finite number: its keys have no weight.
        (causal_bias, lambda graph, dscore, tensors: dscore),
        # Float16's usual number for a mask does, too.
        (
            lambda graph, score, tensors: causal_bias(graph, score, tensors | {"low": Tensor(jnp.float32(-1e4))}),
            lambda graph, dscore, tensors: dscore,
        ),
        # Infinite in both at every score: the derivative of the square root of 0.
        (
            lambda graph, score, tensors: graph.add(score, graph.sqrt(graph.mul(score, tensors["zero"]))),
            lambda graph, dscore, tensors: graph.add(dscore, graph.mul(dscore, graph.mul(tensors["zero"], graph.rsqrt(tensors["zero"])))),
        ),
        (
            lambda graph, score, tensors: graph.add(graph.mul(score, tensors["huge"]), graph.mul(score, tensors["huge"])),
            lambda graph, dscore, tensors: graph.mul(graph.add(dscore, dscore), tensors["huge"]),
        ),
    ],
)
def test_a_right_backward_where_numbers_have_no_end(score_mod, bprop):
    tensors = {"bias": np.zeros((1, 1)), "low": -1e9, "zero": 0.0, "huge": 3e38}
    fused_attention(
        Q, K, V, score_mod=score_mod, score_mod_tensors=tensors, score_mod_bprop=bprop, score_mod_bprop_tensors=tensors
    )  # fmt: skip


def test_a_large_negative_score_that_varies_is_compared():
    """Only a constant stands for a mask."""
    score_mod = lambda graph, score, tensors: graph.sub(graph.mul(score, 2.0), 5000.0)  # noqa: E731
    with pytest.raises(scoremod.InvalidArgumentError, match="expected the derivative of score_mod"):
        fused_attention(Q, K, V, score_mod=score_mod, score_mod_bprop=lambda graph, dscore, tensors: dscore)


def test_a_comparison_is_made_once_for_equal_callbacks(monkeypatch):
    made = []
    results = graph_callback._Comparison.results
    monkeypatch.setattr(graph_callback._Comparison, "results", lambda self: made.append(1) or results(self))

    def run(limit, slope=1.0):
        cap = SoftCap()
        fused_attention(
            Q, K, V, score_mod=cap.forward, score_mod_tensors={"cap": limit}, score_mod_bprop=cap.backward,
            score_mod_bprop_tensors={"one": slope},
        )  # fmt: skip

    graph_callback._first_difference.cache_clear()
    for _ in range(3):
        run(2.5)
    assert len(made) == 1
    run(3.5)
    assert len(made) == 2
    # The check of one set of numbers says nothing of another.
    for _ in range(2):
        with pytest.raises(scoremod.InvalidArgumentError, match="expected the derivative"):
            run(2.5, slope=2.0)
    assert len(made) == 3


def test_a_call_calls_each_callback_as_often_as_it_must():
    """score_mod once for the comparison and once for the program, the backward once; what is compared is differentiated once alone."""
    calls, cap = [], SoftCap()
    forward = lambda *arguments: calls.append("forward") or cap.forward(*arguments)  # noqa: E731
    backward = lambda *arguments: calls.append("backward") or cap.backward(*arguments)  # noqa: E731
    own = {"score_mod_bprop": backward, "score_mod_bprop_tensors": {"one": 1.0}}
    graph_callback._first_difference.cache_clear()
    for arguments, expected in ((own, ["forward", "backward", "forward"]), ({}, ["forward"])):
        for _ in range(3):
            calls.clear()
            fused_attention(Q, K, V, score_mod=forward, score_mod_tensors={"cap": 2.0}, **arguments)
            assert calls == expected


def test_elements_of_tensors_are_read_without_a_question_for_negative_indices():
    bias = np.ones((1, H, S, S), np.float32)
    modifier = graph_modifier((B, H, S, S), lambda graph, score, tensors: graph.add(score, tensors["bias"]), score_mod_tensors={"bias": bias})
    jaxpr = jax.make_jaxpr(modifier)(jnp.float32(0), *[jnp.int32(0)] * 4)
    assert not {"lt", "select_n"} & {equation.primitive.name for equation in jaxpr.jaxpr.eqns}


SEED = int(os.environ.get("SCOREMOD_TEST_SEED", random.SystemRandom().randrange(2**31)))


def test_callbacks_whose_state_changes_between_calls():
    """Numbers, arrays, dtypes and shapes that callbacks read change at random: each call computes what they are now, and a backward that is of
    another state is refused."""
    print(f"SCOREMOD_TEST_SEED={SEED}")
    draw = random.Random(SEED)
    state = {"factor": 2.0, "slope": 2.0, "captured": np.ones((H,), np.float32), "shape": (1, H, 1, 1)}

    def forward(graph, score, tensors):
        captured = Tensor(jnp.asarray(state["captured"])[graph.gen_index(score, axis=1).value].astype(jnp.float32))
        return graph.add(graph.add(graph.mul(score, state["factor"]), captured), tensors["bias"])

    def now(bias):
        """The loss and its gradient by q, in float64."""
        q, k, v = (np.asarray(x, np.float64).swapaxes(1, 2) for x in (Q, K, V))
        scores = q @ k.swapaxes(2, 3) / D**0.5 * state["factor"] + np.float64(state["captured"])[:, None, None] + np.float64(bias)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        o = p @ v
        d_p = 2 * o @ v.swapaxes(2, 3)
        d_q = p * (d_p - (d_p * p).sum(-1, keepdims=True)) @ k / D**0.5 * state["factor"]
        return (o**2).sum(), d_q.swapaxes(1, 2)

    for _ in range(6):
        change = draw.choice(sorted(state))
        numbers = [draw.uniform(-2, 2) for _ in range(H)]
        state[change] = {
            "factor": numbers[0],
            "slope": numbers[1],
            "captured": np.asarray(numbers, draw.choice([np.float32, np.float16])),
            "shape": draw.choice([(1, H, 1, 1), (B, 1, 1, S), (S, S), (B, H, S, S)]),
        }[change]
        if draw.random() < 0.7:
            state["slope"] = state["factor"]
        tensor = jnp.asarray(np.random.default_rng(draw.randrange(2**31)).standard_normal(state["shape"]), jnp.float32)
        backward = lambda graph, dscore, tensors: graph.mul(dscore, state["slope"])  # noqa: E731
        call = lambda q: (fused_attention(q, K, V, score_mod=forward, score_mod_bprop=backward, score_mod_tensors={"bias": tensor}) ** 2).sum()  # noqa: E731, B023
        if abs(state["slope"] - state["factor"]) > 0.01:
            with pytest.raises(scoremod.InvalidArgumentError, match="expected the derivative"):
                call(Q)
            continue
        for got, want in zip(jax.value_and_grad(call)(Q), now(tensor)):
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)


def test_one_object_serves_several_threads_at_once():
    cap = SoftCap()
    wants = {limit: flex_attention(Q, K, V, lambda score, *_, c=limit: c * jnp.tanh(score / c)) for limit in (1.5, 2.0, 2.5, 3.0)}

    def run(limit):
        for _ in range(5):
            graph_callback._first_difference.cache_clear()
            got = fused_attention(
                Q, K, V, score_mod=cap.forward, score_mod_bprop=cap.backward, score_mod_tensors={"cap": limit},
                score_mod_bprop_tensors={"one": 1.0},
            )  # fmt: skip
            np.testing.assert_allclose(got, wants[limit], atol=1e-5)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(run, wants))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"score_mod": lambda graph, score, tensors: tensors["slope"], "score_mod_tensors": {"cap": 1.0}},
            "among score_mod_tensors \\('cap'\\), found 'slope'",
        ),
        ({"score_mod": lambda graph, score, tensors: graph.neg(graph.cmp_gt(score, score))}, "graph.neg: expected numbers of one type, found input of bool"),
        ({"score_mod_tensors": {}}, "score_mod_tensors require score_mod"),
        ({"score_mod": causal_bias, "score_mod_bprop_tensors": {"x": 1}}, "require score_mod_bprop"),
        ({"score_mod": 1}, "score_mod: expected a function"),
        ({"score_mod": causal_bias, "score_mod_tensors": [1]}, "expected a mapping"),
        ({"score_mod": causal_bias, "score_mod_tensors": {1: 1}}, "expected names, found 1"),
        ({"score_mod": causal_bias, "score_mod_tensors": {"bias": jnp.ones((3, 1))}}, "broadcasts to"),
        ({"score_mod": lambda graph, score, tensors: score.value}, "return a tensor of the graph"),
        ({"score_mod": lambda graph, score, tensors: graph.add(a=score, b="1")}, "a tensor of the graph or a number as 'b', found '1'"),
        ({"score_mod": lambda graph, score, tensors: score.set_data_type("HALF")}, "set_data_type: expected FLOAT, INT32 or BOOLEAN"),
        ({"score_mod": lambda graph, score, tensors: score.set_data_type("INT32")}, "set_data_type: expected float32"),
        ({"score_mod": lambda graph, score, tensors: graph.exp(score, compute_data_type="BFLOAT16")}, "compute_data_type: expected FLOAT"),
        ({"score_mod": lambda graph, score, tensors: graph.exp(score, compute_data_type="INT32")}, "expected FLOAT, or the type of these arguments"),
        ({"score_mod": causal_bias, "trust_bprop": True}, "trust_bprop requires score_mod_bprop"),
        ({"score_mod": lambda graph, score, tensors: graph.tanh(score, alpha=1)}, "graph.tanh"),
        ({"score_mod": lambda graph, score, tensors: graph.gen_index(score, axis=4)}, "expected an axis from 0 to 3"),
    ],
)
def test_mistakes(arguments, message):
    with pytest.raises(scoremod.InvalidArgumentError, match=message):
        fused_attention(Q, K, V, **arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"score_mod": 1},
        {"score_mod": causal_bias, "score_mod_tensors": [1]},
        {"score_mod": causal_bias, "score_mod_tensors": {1: 1}},
        {"score_mod": lambda graph, score, tensors: 2.0},
        {"score_mod": lambda graph, score, tensors: graph.tanh(score, alpha=1)},
        {"score_mod": lambda graph, score, tensors: graph.add(a=score, b=None)},
    ],
)
def test_wrong_types_are_type_errors(arguments):
    with pytest.raises(TypeError):
        fused_attention(Q, K, V, **arguments)
    with pytest.raises(TypeError):
        flex_attention(Q, K, V, 1)


def causal_by_constants(graph, score, tensors):
    row, column = (graph.gen_index(input=score, axis=axis).set_data_type("INT32") for axis in (2, 3))
    keep = graph.cmp_ge(input=row, comparison=column).set_data_type("BOOLEAN")
    return graph.binary_select(input0=graph.mul(a=score, b=2.0), input1=float("-inf"), mask=keep)


def test_constants_of_callbacks_are_constants_of_programs():
    """So that a mask is recognised as what it is: a causal callback is as a causal mask_mod."""
    found = fused_attention(Q, K, V, score_mod=causal_by_constants)
    mask = lambda b, h, i, j: i >= j  # noqa: E731
    np.testing.assert_array_equal(found, flex_attention(Q, K, V, lambda s, *_: s * 2.0, mask))
    explanation = explain(Q, K, V, causal_by_constants, score_mod_tensors={})
    assert not explanation.operands
    assert explanation.compiled["mask"]["kind"] == explain(Q, K, V, mask_mod=mask).compiled["mask"]["kind"] == "band"
    assert support(Q, K, V, causal_by_constants, score_mod_tensors={})["cpu"] == ()


def test_data_types_are_obeyed():
    def score_mod(graph, score, tensors):
        row = graph.gen_index(input=score, axis=2).set_data_type("INT32")
        late = graph.cmp_gt(row, 3).set_data_type("FLOAT")
        return graph.add(score, graph.mul(late, graph.div(row, 2)))

    want = flex_attention(Q, K, V, lambda s, b, h, i, j: s + jnp.where(i > 3, i / 2, 0.0))
    np.testing.assert_allclose(fused_attention(Q, K, V, score_mod=score_mod), want, rtol=1e-6)


def test_every_activation_has_a_backward_that_is_its_derivative():
    graph = Graph(())
    for name in ("relu", "leaky_relu", "tanh", "sigmoid", "elu", "gelu", "gelu_approx_tanh", "softplus", "swish"):
        for x in (-1.5, 0.5):
            of = lambda x, name=name: getattr(graph, name)(Tensor(x)).value  # noqa: E731
            step = (of(jnp.float32(x + 1e-2)) - of(jnp.float32(x - 1e-2))) / 2e-2
            got = getattr(graph, f"{name}_backward")(loss=Tensor(jnp.float32(3)), input=Tensor(jnp.float32(x))).value
            np.testing.assert_allclose(got, 3 * step, rtol=2e-3, atol=1e-4)


_UNARY = ("sqrt", "rsqrt", "reciprocal", "exp", "log", "neg", "abs", "ceil", "floor", "sin", "cos", "tan", "erf", "identity", "tanh")
_ACTIVATIONS = ("relu", "leaky_relu", "tanh", "sigmoid", "elu", "gelu", "gelu_approx_tanh", "softplus", "swish")
_BINARY = ("add", "mul", "sub", "add_square", "div", "bias", "scale", "max", "min", "mod", "pow")
_COMPARISONS = ("cmp_eq", "cmp_neq", "cmp_gt", "cmp_ge", "cmp_lt", "cmp_le")


def _every_unary(graph, x, c):
    return [getattr(graph, name)(x) for name in _UNARY + _ACTIVATIONS]


def _every_binary(graph, x, c):
    return [getattr(graph, name)(x, c) for name in _BINARY]


def _every_backward(graph, x, c):
    return [getattr(graph, f"{name}_backward")(c, x) for name in _ACTIVATIONS]


def _every_condition(graph, x, c):
    conditions = [getattr(graph, name)(x, c) for name in _COMPARISONS]
    joined = [graph.logical_and(conditions[2], conditions[1]), graph.logical_or(*conditions[:2]), graph.logical_not(conditions[4])]
    return [graph.binary_select(x, c, condition) for condition in conditions + joined]


@pytest.mark.parametrize("every", [_every_unary, _every_binary, _every_backward, _every_condition])
def test_the_whole_vocabulary_runs(every):
    """Sums of every operation, of numbers between 0.5 and 1.5 where all are smooth, against the same callback in plain JAX."""

    def score_mod(graph, score, tensors):
        x = graph.add(graph.mul(graph.tanh(score), tensors["half"]), tensors["one"])
        total = score
        for each in every(graph, x, tensors["c"]):
            total = graph.add(total, each)
        return graph.mul(total, tensors["half"])

    numbers = {"half": 0.5, "one": 1.0, "c": 0.7}
    got = lambda q: fused_attention(q, K, V, score_mod=score_mod, score_mod_tensors=numbers)  # noqa: E731
    results = jax.jit(lambda q: (got(q), jax.grad(lambda q: (got(q) ** 2).sum())(q)))(Q)

    def plain(dtype, q, k, v):
        tensors = {name: Tensor(dtype(number)) for name, number in numbers.items()}
        modifier = lambda score, *indices: score_mod(Graph(indices), Tensor(score), tensors).value  # noqa: E731
        want = lambda q: dense.attention(q, k, v, modifier)  # noqa: E731
        return want(q), jax.grad(lambda q: (want(q) ** 2).sum())(q)

    truth = dense.in_float64(lambda *x: plain(jnp.float64, *x), Q, K, V)
    dense.assert_close(results, jax.jit(lambda *x: plain(jnp.float32, *x))(Q, K, V), truth)


def causal_with_data_types(graph, score, tensors):
    """The causal callback of cudnn-frontend's own samples, which names the data type of each operation."""
    row, column = (graph.gen_index(input=score, axis=axis, compute_data_type="INT32").set_data_type("INT32") for axis in (2, 3))
    keep = graph.cmp_ge(input=row, comparison=column, compute_data_type="BOOLEAN").set_data_type("BOOLEAN")
    return graph.binary_select(input0=score, input1=float("-inf"), mask=keep, compute_data_type="FLOAT")


def test_a_causal_callback_with_data_types():
    want = flex_attention(Q, K, V, mask_mod=lambda b, h, i, j: i >= j)
    np.testing.assert_array_equal(fused_attention(Q, K, V, score_mod=causal_with_data_types), want)


def test_every_method_takes_the_data_type_of_its_arguments_and_of_its_result():
    graph = Graph((jnp.int32(0),) * 4)
    for name in sorted(METHODS):
        parameters = inspect.signature(getattr(Graph, name)).parameters.values()
        truths = {"logical_and", "logical_or", "logical_not"}
        given = {each.name: jnp.bool_(True) if name in truths or each.name == "mask" else jnp.float32(0.5) for each in parameters if each.default is each.empty}
        given = {each: Tensor(value) for each, value in given.items() if each != "self"}
        given |= {"axis": 2} if name == "gen_index" else {}
        result = getattr(graph, name)(**given).value
        of_result = {np.dtype(np.bool_): "BOOLEAN", np.dtype(np.int32): "INT32"}.get(np.dtype(result.dtype), "FLOAT")
        for data_type in {"FLOAT", of_result}:
            np.testing.assert_array_equal(getattr(graph, name)(**given, compute_data_type=data_type).value, result, err_msg=name)
        if name not in truths | {"gen_index"}:
            with pytest.raises(scoremod.InvalidArgumentError, match=f"graph.{name}: compute_data_type: expected FLOAT"):
                getattr(graph, name)(**given, compute_data_type="INT32")


def test_every_method_is_tried_here():
    tried = {*_UNARY, *_ACTIVATIONS, *_BINARY, *_COMPARISONS, *(f"{name}_backward" for name in _ACTIVATIONS)}
    tried |= {"gen_index", "binary_select", "logical_and", "logical_or", "logical_not"}
    assert tried == METHODS


def test_one_object_serves_two_attentions_at_once():
    """An attention never sees what the forward of another one left on the object."""
    cap = SoftCap()
    given = {"score_mod": cap.forward, "score_mod_bprop": cap.backward, "score_mod_bprop_tensors": {"one": 1.0}}

    def both(attention, q):
        short = q[:, :5]
        return (attention(q, K, V, 2.0) ** 2).sum() + (attention(short, short, short, 3.0) ** 3).sum()

    fused = lambda q, k, v, limit: fused_attention(q, k, v, score_mod_tensors={"cap": limit}, **given)  # noqa: E731
    plain = lambda q, k, v, limit: flex_attention(q, k, v, lambda score, *_: limit * jnp.tanh(score / limit))  # noqa: E731
    got, want = (jax.jit(jax.value_and_grad(lambda q, f=f: both(f, q)))(Q) for f in (fused, plain))
    for x, y in zip(got, want):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)
