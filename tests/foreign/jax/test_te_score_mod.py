"""TransformerEngine's score_mod tests: callbacks on a graph with tensors, with a backward callback and without, against dense attention in float64.

TransformerEngine takes callbacks without masks, biases, padding and learned softmaxes, in 16 bits alone. Here they are tested beside all of these.
"""

import dataclasses

import dense_reference as dense
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import te_problems
from held_in_jax import errors_beside, held
from te_callbacks import CALLBACKS
from te_calls import attend, check, way_of

import scoremod
from scoremod.jax import transformer_engine as te

SUITE = "TransformerEngine score_mod"
BATCH, HEADS, DIM = 2, 4, 16
WAYS = ("fused_attn", "fused_attn, bprop", "DotProductAttention, bprop")


def call_of(case, way, constants, scale):
    """attention(q, k, v, tensors) of the callbacks, through one of WAYS."""

    def attention(q, k, v, tensors):
        forward, backward = case.make()
        given = {"score_mod_tensors": tensors}
        if "bprop" in way:
            given["score_mod_bprop_tensors"] = tensors | constants
        else:
            backward = None
        if way.startswith("fused_attn"):
            named = (te.AttnBiasType.NO_BIAS, te.AttnMaskType.NO_MASK, te.QKVLayout.BSHD_BSHD_BSHD, te.AttnSoftmaxType.VANILLA_SOFTMAX)
            return te.fused_attn((q, k, v), None, None, None, *named, scale, 0.0, True, score_mod=forward, score_mod_bprop=backward, **given)
        module = te.DotProductAttention(
            DIM, HEADS, k.shape[2], attn_mask_type="no_mask", scale_factor=scale, score_mod=forward, score_mod_bprop=backward, transpose_batch_sequence=False
        )
        return module.apply({}, q, k, v, **given)

    return attention


def drawn(random):
    """(q, k, v and the gradient of the output, the scale, the dtype)"""
    queries, keys = (int(each) for each in random.integers(9, 25, 2))
    heads_kv, dim_v = (int(random.choice(each)) for each in ((1, 2, 4), (8, 16)))
    dtype = jnp.dtype(str(random.choice(te_problems.DTYPES)))
    shapes = {"q": (BATCH, queries, HEADS, DIM), "k": (BATCH, keys, heads_kv, DIM), "v": (BATCH, keys, heads_kv, dim_v), "d_o": (BATCH, queries, HEADS, dim_v)}
    return {name: random.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}, float(random.choice((DIM**-0.5, 0.3))), dtype


def results_of(attention, fixed):
    """A function of name -> array, which returns the output and the gradients of all but d_o. fixed: tensors without a gradient."""

    def loss(arrays, d_o):
        tensors = {name: x for name, x in arrays.items() if name not in ("q", "k", "v")}
        o = attention(arrays["q"], arrays["k"], arrays["v"], fixed | tensors)
        wide = jnp.promote_types(o.dtype, jnp.float32)
        return (o.astype(wide) * d_o.astype(wide)).sum(), o

    def results(arrays):
        rest = {name: x for name, x in arrays.items() if name != "d_o"}
        gradients, o = jax.grad(loss, has_aux=True)(rest, arrays["d_o"])
        return {"o": o, **gradients}

    return jax.jit(results)


def floating(value):
    return isinstance(value, (np.ndarray, np.floating)) and np.issubdtype(value.dtype, np.floating)


@pytest.mark.parametrize("name", CALLBACKS)
def test_callbacks(name, foreign_seed, record):
    case, random = CALLBACKS[name], np.random.default_rng(foreign_seed)
    arrays, scale, dtype = drawn(random)
    tensors = case.tensors(random, (BATCH, HEADS, arrays["q"].shape[1], arrays["k"].shape[1]))
    fixed = {name: value for name, value in tensors.items() if not floating(value)}
    arrays |= {name: np.asarray(value) for name, value in tensors.items() if floating(value)}
    plain = results_of(lambda q, k, v, tensors: dense.attention(q, k, v, case.formula(tensors), scale=scale), jax.tree.map(jnp.asarray, fixed))
    expected, truth = plain(jax.tree.map(jnp.asarray, arrays)), dense.in_float64(plain, arrays)
    eps = float(jnp.finfo(dtype).eps)
    beside = errors_beside(lambda x: plain(jax.tree.map(jnp.asarray, x)), lambda x: dense.in_float64(plain, x), arrays, random) if tensors else None
    for way in WAYS:
        found = results_of(call_of(case, way, case.constants, scale), fixed)(jax.tree.map(jnp.asarray, arrays))
        assert found["o"].dtype == dtype
        record(SUITE, name, way, held(found, expected, truth, eps, beside))
    for zeroed in found:  # negative controls
        with pytest.raises(AssertionError, match="from float64"):
            held(found | {zeroed: np.zeros_like(found[zeroed])}, expected, truth, eps, beside)
    if name != "identity":
        dropped = results_of(call_of(CALLBACKS["identity"], "fused_attn", {}, scale), {})
        with pytest.raises(AssertionError, match="from float64"):
            found = dropped({each: jnp.asarray(arrays[each]) for each in ("q", "k", "v", "d_o")})
            held(found, *({each: x[each] for each in found} for x in (expected, truth)), eps)


@pytest.mark.parametrize("name", ["soft cap", "soft cap, causal", "squared", "gate"])
def test_an_identity_as_the_backward_is_refused(name, foreign_seed):
    """TransformerEngine takes it, as it takes a missing backward, and its gradients are wrong."""
    case, random = CALLBACKS[name], np.random.default_rng(foreign_seed)
    wrong = dataclasses.replace(case, make=lambda: (case.make()[0], lambda graph, dscore, tensors: dscore))
    arrays, scale, _ = drawn(random)
    tensors = case.tensors(random, (BATCH, HEADS, arrays["q"].shape[1], arrays["k"].shape[1]))
    with pytest.raises(scoremod.InvalidArgumentError, match="expected the derivative of score_mod"):
        call_of(wrong, "fused_attn, bprop", case.constants, scale)(*(jnp.asarray(arrays[each]) for each in "qkv"), tensors)


# TransformerEngine refuses these as well: arguments -> (exception, message).
UNFIT = {
    "tensors alone": ({"score_mod_tensors": {"a": 1.0}}, scoremod.InvalidArgumentError, "score_mod_tensors require score_mod"),
    "a backward alone": ({"score_mod_bprop": lambda graph, dscore, tensors: dscore}, scoremod.InvalidArgumentError, "require score_mod"),
    "no function": ({"score_mod": 1, "score_mod_tensors": {}}, TypeError, "score_mod: expected a function"),
    "no mapping": ({"score_mod": lambda *given: given[1], "score_mod_tensors": [1]}, TypeError, "expected a mapping"),
    "no name": ({"score_mod": lambda *given: given[1], "score_mod_tensors": {1: 1.0}}, TypeError, "expected names, found 1"),
    "a backward's tensors alone": (
        {"score_mod": lambda *given: given[1], "score_mod_tensors": {}, "score_mod_bprop_tensors": {"a": 1.0}},
        scoremod.InvalidArgumentError,
        "require score_mod_bprop",
    ),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_both_refuse(name):
    arguments, exception, message = UNFIT[name]
    qkv = (jnp.ones((1, 4, 2, 8)),) * 3
    with pytest.raises(exception, match=message):
        te.fused_attn(qkv, None, None, None, "no_bias", "no_mask", "bshd_bshd_bshd", "vanilla", None, 0.0, True, **arguments)


def through_a_callback(problem, given):
    """attend(), where the bias is no argument but a tensor that a score_mod adds."""
    given = dict(given)
    bias = {"bias": given.pop("bias")}
    added = lambda graph, score, tensors: graph.bias(input=score, bias=tensors["bias"])  # noqa: E731
    return attend(dataclasses.replace(problem, bias_type="no_bias"), given, score_mod=added, score_mod_tensors=bias)


BESIDE = [
    ("no_mask", "bs3hd"),
    ("causal", "bshd_bs2hd"),
    ("padding", "bshd_bshd_bshd"),
    ("padding_causal", "thd_thd_thd"),
    ("padding", "t3hd"),
    ("causal_bottom_right", "sbhd_sbhd_sbhd"),
    ("padding_causal_bottom_right", "sb3hd"),
]


@pytest.mark.parametrize(("mask", "layout"), BESIDE)
def test_a_callback_beside_what_transformer_engine_refuses(mask, layout, foreign_seed, record):
    """Masks, padding, packed arrays, windows and other softmaxes."""
    random = np.random.default_rng(foreign_seed)
    problem = dataclasses.replace(te_problems.draw(mask, layout, random), bias=str(random.choice(te_problems.BIASES[1:])), bias_type="post_scale_bias")
    print(problem)
    record(SUITE, f"a bias beside {mask}, {layout.upper()}", way_of(layout), check(problem, random, call=through_a_callback))


TENSORS = (np.float16, jnp.bfloat16, np.float32, np.int32, np.uint8, np.bool_)


@pytest.mark.parametrize("dtype", TENSORS, ids=lambda dtype: np.dtype(dtype).name)
def test_tensors_of_each_dtype(dtype, foreign_seed, record):
    """Their numbers are added to the scores."""
    random = np.random.default_rng(foreign_seed)
    problem = dataclasses.replace(te_problems.draw("no_mask", "bshd_bshd_bshd", random), bias="1hss", bias_type="post_scale_bias")
    numbers = np.asarray(random.integers(0, 3, problem.bias_shape), dtype)

    def call(problem, given):
        given = dict(given)
        unused = given.pop("bias")  # has a gradient, which is that of the scores
        added = lambda graph, score, tensors: graph.add(a=graph.add(a=score, b=tensors["numbers"]), b=tensors["unused"])  # noqa: E731
        without = dataclasses.replace(problem, bias=None, bias_type="no_bias")
        return attend(without, given, score_mod=added, score_mod_tensors={"numbers": numbers, "unused": unused - numbers.astype(np.float32)})

    record(SUITE, f"a tensor of {numbers.dtype.name}", "fused_attn", check(problem, random, call=call))
