"""Traces of user functions, and functions that are refused."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scoremod
from scoremod.finite_masks import warn_of_finite_masks
from scoremod.jax import explain, flex_attention, support
from scoremod.jax.custom_rules import body_has_rules_derivative
from scoremod.jax.trace import trace
from scoremod.program import Builder

B, S, H, D = 2, 16, 4, 8
Q = jax.ShapeDtypeStruct((B, S, H, D), jnp.float32)


def explained(score_mod=None, mask_mod=None):
    return explain(Q, Q, Q, score_mod, mask_mod)


def operands(score_mod=None, mask_mod=None):
    return [(x.origin, x.axes, x.shape, x.dtype) for x in explained(score_mod, mask_mod).operands]


def test_arrays_indexed_by_the_indices_are_read_in_place():
    slopes, bias = jnp.ones(H), jnp.ones((S, B), jnp.bfloat16)
    got = operands(lambda score, b, h, q_idx, kv_idx: score + slopes[h] + bias[kv_idx, b].astype(jnp.float32))
    assert got == [("captured array", ("h",), (H,), "float32"), ("captured array", ("b", "kv_idx"), (B, S), "bfloat16")]


def test_an_array_that_is_larger_is_cut_and_one_indexed_by_more_than_the_axis_is_a_table():
    large, small = jnp.ones(S + 5), jnp.ones(S - 5)
    got = operands(lambda score, b, h, q_idx, kv_idx: score + large[q_idx] + small[jnp.minimum(q_idx, S - 6)])
    assert got == [("captured array", ("q_idx",), (S,), "float32"), ("captured array", (), (S - 5,), "float32")]


def test_computed_indices_make_a_table():
    bias = jnp.ones((3, H, 2 * S))
    got = explained(lambda score, b, h, q_idx, kv_idx: score + bias[1, h, q_idx - kv_idx + S])
    assert [(x.shape, x.called) for x in got.operands] == [((H, 2 * S), "bias")]
    assert "x0[h, " in got.program and ", table, captured array bias, " in str(got)


def test_two_reads_of_one_array_are_two_operands_and_equal_ones_are_one():
    ids = jnp.zeros((B, S), jnp.int32)
    same = lambda b, h, q_idx, kv_idx: ids[b, q_idx] == ids[b, kv_idx]  # noqa: E731
    got = operands(lambda score, b, h, q_idx, kv_idx: score + ids[b, q_idx], same)
    assert got == [("captured array", ("b", "q_idx"), (B, S), "int32"), ("captured array", ("b", "kv_idx"), (B, S), "int32")]


def test_what_has_no_op_is_computed_by_xla_and_says_so():
    edges = jnp.asarray([1, 5, 9])
    got = explained(lambda score, b, h, q_idx, kv_idx: score + jnp.searchsorted(edges, q_idx) * 0.5 + kv_idx)
    (operand,) = got.operands
    assert (operand.origin, operand.called, operand.axes, operand.bytes) == ("computed by XLA", "", ("q_idx",), 4 * S)
    assert "computed by XLA, 64 bytes" in str(got)


def test_arithmetic_on_captured_arrays_is_done_before():
    slopes = jnp.ones(H)
    got = explained(lambda score, b, h, q_idx, kv_idx: score + jnp.cumsum(jnp.exp(slopes))[h])
    assert got.program == "operand x0: f32 [h]\nlet t2 = score + x0\nvalue = t2"


def test_library_functions_are_one_op():
    got = explained(lambda score, b, h, q_idx, kv_idx: jax.nn.softplus(jax.nn.silu(jax.nn.relu(score))) + q_idx // 3 % 5)
    for op in ("softplus(", "silu(", "relu(", "// 3", "% 5"):
        assert op in got.program


def test_functions_that_are_primitives_in_some_versions_of_jax():
    def score_mod(score, *_):
        return jnp.log2(1 + score * score) + jax.grad(jnp.tanh)(score)

    q = 3 * jax.random.normal(jax.random.key(0), Q.shape, jnp.float32)
    np.testing.assert_allclose(flex_attention(q, q, q, score_mod), flex_attention(q, q, q, score_mod, backend="xla"), atol=1e-5)


def test_calls_are_looked_into():
    double = jax.jit(lambda x: x * 2.0)
    got = explained(lambda score, *_: jax.checkpoint(jax.jit(lambda x: double(jnp.tanh(x)) + 1.0))(score))
    assert got.program == "let t1 = tanh(score)\nlet t3 = t1 * 2.0\nlet t5 = t3 + 1.0\nvalue = t5"


def test_random_masks_are_computed_by_xla():
    key = jax.random.key(3)

    def dropped(score, b, h, q_idx, kv_idx):
        own = jax.random.fold_in(jax.random.fold_in(key, h), q_idx * S + kv_idx)
        return jnp.where(jax.random.bernoulli(own, 0.5), score, -jnp.inf)

    assert operands(dropped) == [("computed by XLA", ("h", "q_idx", "kv_idx"), (H, S, S), "bool")]
    q = jax.random.normal(key, Q.shape, jnp.float32)
    np.testing.assert_allclose(flex_attention(q, q, q, dropped), flex_attention(q, q, q, dropped, backend="xla"), atol=1e-5)


def test_a_mask_by_infinity_is_a_mask():
    got = explained(lambda score, b, h, q_idx, kv_idx: jnp.where(q_idx >= kv_idx, score, -jnp.inf))
    assert got.compiled["mask"]["kind"] == "band"


def test_equal_functions_have_one_program():
    def make(factor):
        return lambda score, b, h, q_idx, kv_idx: factor * score

    assert explained(make(2.0)).program == explained(make(2.0)).program != explained(make(3.0)).program
    # A captured array's values are no part of it.
    assert explained(make(jnp.float32(2))).program == explained(make(jnp.float32(3))).program
    # 0.0 and -0.0 are equal numbers but not equal programs.
    assert explained(make(0.0)).program != explained(make(-0.0)).program


@pytest.mark.parametrize(
    ("score_mod", "what"),
    [
        (lambda score, *_: jax.lax.erf_inv(score), "'erf_inv'"),
        (lambda score, *_: jnp.cumsum(score[None])[0], "'cumsum'|'broadcast_in_dim'"),
        (lambda score, *_: score.astype(jnp.bfloat16).astype(jnp.float32), "'convert_element_type'"),
        (lambda score, *_: score.astype(jnp.bfloat16).astype(jnp.float32), "makes bfloat16 of the score"),
        (lambda score, *_: (score * jnp.ones(3)).sum(), r"makes an array of shape \(3,\) of the score"),
        (lambda score, *_: jnp.zeros((2,) * 5)[(score.astype(jnp.int32),) * 5] + score, "an array at 5 indices .* at most 4"),
        (lambda score, *_: jax.lax.fori_loop(0, 3, lambda i, x: x * 2, score), "'(scan|while)'"),
        (lambda score, *_: (jax.debug.print("{}", score), score)[1], "has an effect"),
    ],
)
def test_what_cannot_be_expressed_names_the_primitive_and_the_line(score_mod, what):
    with pytest.raises(scoremod.UnsupportedError, match=f"score_mod: .*{what}") as caught:
        explained(score_mod)
    assert f"test_trace.py:{score_mod.__code__.co_firstlineno}" in str(caught.value)


def test_a_derivative_rule_of_the_users_is_not_ignored():
    @jax.custom_jvp
    def relu(x):
        return jnp.maximum(x, 0.0)

    relu.defjvps(lambda t, _, x: t)  # a straight-through gradient
    assert "surrogate(" in explained(lambda score, *_: relu(score)).program

    @jax.custom_jvp
    def total(x):
        return x.sum()

    total.defjvps(lambda t, _, x: t.sum())
    with pytest.raises(scoremod.UnsupportedError, match="derivative rule of its own, and arguments or results that are no float32 scalars"):
        explained(lambda score, *_: total(score[None]))
    # An operation that doesn't touch the score is left to XLA.
    logits = jnp.linspace(-1.0, 1.0, H, dtype=jnp.float32)
    q, k, v = (jax.random.normal(jax.random.key(i), Q.shape, jnp.float32) for i in range(3))

    def gradient(f):
        modifier = lambda x: lambda score, b, h, q_idx, kv_idx: score + f(x[h]) * (q_idx - kv_idx)  # noqa: E731
        return jax.grad(lambda x: (flex_attention(q, k, v, modifier(x)) ** 2).sum())(logits)

    straight_through = lambda x: x + jax.lax.stop_gradient(jnp.maximum(x, 0.0) - x)  # noqa: E731
    np.testing.assert_allclose(gradient(relu), gradient(straight_through), rtol=1e-4)
    assert (gradient(relu) != 0).all()


LIST = [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    "score_mod",
    [
        lambda score, b, h, q_idx, kv_idx: score if q_idx > kv_idx else -score,
        lambda score, b, h, q_idx, kv_idx: score + np.asarray(LIST)[h],
        lambda score, b, h, q_idx, kv_idx: score + LIST[h],
        lambda score, b, h, q_idx, kv_idx: np.tanh(score),
    ],
)
def test_python_that_asks_for_values_is_told_what_to_write(score_mod):
    with pytest.raises(TypeError) as caught:
        explained(score_mod)
    (note,) = [note for note in caught.value.__notes__ if note.startswith("score_mod")]
    assert "jnp.where" in note and "jnp.asarray" in note
    # JAX's own message is about the user's function.
    assert f"test_trace.py:{score_mod.__code__.co_firstlineno}" in str(caught.value)


def test_arithmetic_and_comparisons_of_conditions():
    def score_mod(score, b, h, q_idx, kv_idx):
        high, late, even = score > 0.3, kv_idx > 3, kv_idx % 2 == 0
        chosen = (high < late) | (high * even) | (jnp.maximum(late, even) >= high) ^ (jnp.minimum(high, late) + even)
        return jnp.where(chosen, score, 0.5 * score - 1)

    q = 2 * jax.random.normal(jax.random.key(0), Q.shape, jnp.float32)
    np.testing.assert_allclose(flex_attention(q, q, q, score_mod), flex_attention(q, q, q, score_mod, backend="xla"), atol=1e-5)


def _masked_by(low):
    """Score functions that give some scores `low`."""
    bias = np.zeros((S, S), np.float32)
    bias[3] = low
    number, bias = jnp.float32(low), jnp.asarray(bias)
    return [
        lambda score, b, h, q_idx, kv_idx: jnp.where(q_idx >= kv_idx, score, float(low)),
        lambda score, b, h, q_idx, kv_idx: score + jnp.where(q_idx >= kv_idx, 0.0, float(low)),
        lambda score, b, h, q_idx, kv_idx: jnp.where((q_idx >= kv_idx) & (q_idx != 3), score, number),
        lambda score, b, h, q_idx, kv_idx: score + bias[q_idx, kv_idx],
    ]


def _warnings_of(score_mod, memory):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_finite_masks(*trace(score_mod, None, {"b": B, "h": H, "q_idx": S, "kv_idx": S}), memory, 1)
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize("low", [-1e9, -65504.0, np.finfo(np.float32).min])
def test_a_finite_number_that_stands_for_a_mask_is_warned_of_where_gradients_would_be_wrong(low):
    for score_mod in _masked_by(low):
        (message,) = _warnings_of(score_mod, "cuda")
        assert "use mask_mod" in message and not _warnings_of(score_mod, "host")


def test_masks_that_are_none_are_not_warned_of():
    unmasked = lambda score, b, h, q_idx, kv_idx: jnp.where(q_idx >= kv_idx, score, -jnp.inf) + jnp.where(kv_idx == 0, 1e4, -1e4)  # noqa: E731
    assert not _warnings_of(unmasked, "cuda")
    assert not any(_warnings_of(score_mod, "cuda") for score_mod in [*_masked_by(-30000.0), *_masked_by(-np.inf)])
    assert not _warnings_of(lambda score, *_: jnp.nan_to_num(score), "cuda")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("number", range(4))
def test_gradients_of_rows_that_a_finite_number_masks(number):
    score_mod = _masked_by(-1e9)[number]
    q, k, v, d_o = (jax.random.normal(jax.random.key(i), Q.shape, jnp.float32) for i in range(4))
    gradients = [
        jax.grad(lambda *x, b=backend: (flex_attention(*x, score_mod, backend=b) * d_o).sum(), argnums=(0, 1, 2))(q, k, v) for backend in ("cpu", "xla")
    ]
    for got, want in zip(*gradients):
        np.testing.assert_allclose(got, want, atol=1e-5)


def test_fallback_and_support():
    q = jnp.ones((1, 4, 1, 8), jnp.float32)
    with pytest.raises(scoremod.UnsupportedError):
        flex_attention(q, q, q, lambda score, *_: jax.lax.erf_inv(score))
    got = flex_attention(q, q, q, lambda score, *_: jax.lax.erf_inv(score / 10), fallback="xla")
    np.testing.assert_allclose(got, q, rtol=1e-5)
    answers = support(q, q, q)
    assert answers["cpu"] == answers["xla"] == ()
    answers = support(q, q, q, lambda score, *_: jax.lax.erf_inv(score))
    assert "erf_inv" in answers["cpu"][0] and answers["xla"] == ()


def test_a_function_of_too_many_operations_is_xlas(monkeypatch):
    """65536 nodes are the most that a program may have. JAX would take minutes to trace such a function, and XLA to compile it."""
    builder = Builder()
    value = builder.node("score", "f32")
    for i in range(33000):
        value = builder.op("mul", value, builder.constant(1 + i / 2**20, "f32"))
    program, _ = builder.finish(value)
    monkeypatch.setattr("scoremod.jax.api.trace", lambda *_, **__: (program, []))
    q = jnp.ones((1, 4, 1, 8), jnp.float32)
    with pytest.raises(scoremod.UnsupportedError, match="more than 65536 nodes"):
        flex_attention(q, q, q)
    np.testing.assert_allclose(flex_attention(q, q, q, fallback="xla"), q)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"query": (2, 3)}, "query: expected 4 dimensions"),
        ({"key": (B, S, 3, D)}, "value: expected the number of heads of key, 3"),
        ({"query": (B, S, 6, D)}, "multiple of key's 4, found 6"),
        ({"key": (B, S + 1, H, D)}, "value: expected the length of key"),
        ({"value": (B + 1, S, H, D)}, "value: expected the batch of query"),
        ({"query": (B, S, H, D + 1)}, "key: expected the head dim of query"),
        ({"layout": "HDSB"}, "layout: expected one of BSHD"),
        ({"query": (B, S, H, 0), "key": (B, S, H, 0)}, "not empty"),
        ({"dtype": jnp.int32}, "expected query, key and value of one dtype"),
        ({"score_mod": lambda *_: 1}, "found int32; convert it"),
        ({"score_mod": lambda *_: (1.0, 2.0)}, "expected it to return one scalar"),
        ({"mask_mod": lambda b, h, i, j: i - j}, "whether the key is kept as bool, found int32"),
        ({"score_mod": 3}, "score_mod: expected a function, found 3"),
        ({"mask_mod": np.ones((9, 9), bool)}, r"mask_mod: expected a function, found an array of shape \(9, 9\)$"),
        ({"score_mod": lambda b, h, i, j: i >= j}, r"score_mod: expected a function of \(score, b, h, q_idx, kv_idx\), found one of \(b, h, i, j\); a mask"),
        ({"mask_mod": lambda score, b, h, i, j: score}, r"mask_mod: expected a function of \(b, h, q_idx, kv_idx\), found one of \(score, b, h, i, j\)"),
        *(({"scale": scale, **on}, "scale: expected a finite number") for scale in (jnp.ones(3), np.nan, "1", 10**400, 2j) for on in ({}, {"backend": "xla"})),
        ({"fallback": "cpu"}, "fallback: expected"),
        ({"score_mod": lambda score, *_: score > 0}, "modified score as float32, found bool; a mask is passed as mask_mod"),
        ({"block_mask": "any"}, r"block_mask: flex_attention\(\) expected no such argument, found one; give mask_mod alone"),
        ({"enable_gqa": True}, "enable_gqa: .*may always have fewer heads"),
        ({"is_causal": True}, r"is_causal: .*mask_mod=scoremod.jax.zoo.causal\(\)"),
    ],
)
def test_mistakes(arguments, message):
    shapes = {name: arguments.pop(name, Q.shape) for name in ("query", "key", "value")}
    dtype = arguments.pop("dtype", jnp.float32)
    arrays = {name: jnp.ones(shape, dtype) for name, shape in shapes.items()}
    with pytest.raises(scoremod.InvalidArgumentError, match=message):
        flex_attention(**arrays, **arguments)


def test_a_slip_in_an_arguments_name_is_a_type_error():
    with pytest.raises(TypeError, match=r"score_mode: flex_attention\(\) expected no such argument, found one; write score_mod$"):
        flex_attention(Q, Q, Q, score_mode=None)


def test_lowering_for_a_platform_without_a_device():
    q = jnp.ones((1, 4, 1, 8), jnp.float32)
    with pytest.raises(scoremod.EnvironmentError, match="expected a device of the platform 'cuda'"):
        jax.jit(flex_attention).trace(q, q, q).lower(lowering_platforms=("cuda",))


def test_numbers_in_the_text_are_as_good_as_arrays():
    mask_mod = lambda b, h, q_idx, kv_idx: (q_idx // 64 == kv_idx // 64) & ((q_idx - kv_idx) % 3 == 0)  # noqa: E731
    got = explained(lambda score, *_: score % 2.0, mask_mod).program
    assert (
        got
        == explained(
            lambda score, *_: score % np.float32(2),
            lambda b, h, q_idx, kv_idx: (q_idx // np.int32(64) == kv_idx // np.int32(64)) & ((q_idx - kv_idx) % np.int32(3) == 0),
        ).program
    )
    assert all(text in got for text in ("score % 2.0", "q_idx // 64", "kv_idx // 64", " % 3")) and len(got.splitlines()) == 10


def test_an_array_of_one_element_is_that_element():
    bias = jnp.ones((H, 1))

    def score_mod(score, b, h, q_idx, kv_idx):
        one = jnp.tanh(score[None]).reshape((1, 1)) + bias[h] + kv_idx[None] * 0.5
        return one[0].sum() + bias[h, 0]

    plain = lambda score, b, h, q_idx, kv_idx: jnp.tanh(score) + bias[h, 0] + kv_idx * 0.5 + bias[h, 0]  # noqa: E731
    assert explained(score_mod).program == explained(plain).program


def test_a_rule_of_jax_that_differs_from_what_a_function_computes_is_not_ignored(monkeypatch):
    jaxpr = jax.make_jaxpr(jax.nn.relu6)(jnp.float32(0))
    assert not body_has_rules_derivative(jaxpr.jaxpr.eqns[0])
    assert body_has_rules_derivative(jax.make_jaxpr(jax.nn.log1mexp)(jnp.float32(0)).jaxpr.eqns[0])
    monkeypatch.setattr("scoremod.jax.trace.library_rule", lambda equation, types, settings: None)
    assert "surrogate(" in explained(lambda score, *_: jax.nn.relu6(score)).program
