"""Wrong attentions that the comparisons must notice: one without its modifier, one with another's gradients, one with an output of zeros."""

import functools

import dense_reference as dense
import jax
import jax.numpy as jnp
import modifiers
import numpy as np
import pytest
from faulty_attention import fused, with_identity_backward, without_score_mod
from test_flex_attention import inputs

CASES = ("soft_cap", "alibi", "relative_bias", "gate")
OUTPUTS = ("o", "lse", "dq", "dk", "dv", "d captured")
# A log-sum-exp's cotangent, so that its gradient is part of every output's.
D_LSE = dense.random_array(11, modifiers.SHAPE[:3])


def results_of(attention, make):
    """[o, lse, dq, dk, dv, gradient of the captured array] as a function of d_o, d_lse, q, k, v and that array."""

    def compute(d_o, d_lse, *x):
        def loss(*x):
            o, lse = attention(*x[:3], *make(*x[3:]))
            return (o * d_o).sum() + (lse * d_lse).sum(), (o, lse)

        gradients, outputs = jax.grad(loss, argnums=(0, 1, 2, 3), has_aux=True)(*x)
        return [*outputs, *gradients]

    return compute


def arguments(name):
    arrays, _ = modifiers.CASES[name]
    q, k, v, d_o = inputs()
    return d_o, D_LSE, q, k, v, *arrays


@functools.cache
def expected(name):
    """(plain, truth): the dense results in float32 and in float64."""
    compute = results_of(dense.attention_and_lse, modifiers.CASES[name][1])
    return jax.jit(compute)(*arguments(name)), dense.in_float64(compute, *arguments(name))


@functools.cache
def right(name):
    return tuple(jax.jit(results_of(fused, modifiers.CASES[name][1]))(*arguments(name)))


def check(name, results):
    dense.assert_close(list(results), *expected(name), captured=1, scores=np.prod(modifiers.SHAPE))


def expect_wrong(name, results, outputs):
    """Each of these outputs is found wrong by itself, the others being right."""
    for output in outputs:
        i = OUTPUTS.index(output)
        with pytest.raises(AssertionError, match=f"output {i}"):
            check(name, [wrong if i == j else x for j, (x, wrong) in enumerate(zip(right(name), results, strict=True))])


@pytest.mark.parametrize("name", CASES)
def test_the_right_one_passes(name):
    check(name, right(name))


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("name", CASES)
def test_zeros_fail(name, output):
    expect_wrong(name, [jnp.zeros_like(x) for x in right(name)], [output])


def _without_mask(q, k, v, score_mod, mask_mod):
    return fused(q, k, v, score_mod, None)


def _without_the_lses_gradient(q, k, v, score_mod, mask_mod):
    o, lse = fused(q, k, v, score_mod, mask_mod)
    return o, jax.lax.stop_gradient(lse)


FAULTS = [
    (without_score_mod, OUTPUTS),
    (_without_mask, ("o", "lse", "dq", "dk", "dv")),
    (with_identity_backward, ("dq", "dk", "dv", "d captured")),
    (_without_the_lses_gradient, ("dq", "dk", "d captured")),
]


@pytest.mark.parametrize(("fault", "outputs"), FAULTS, ids=lambda x: getattr(x, "__name__", ""))
@pytest.mark.parametrize("name", CASES)
def test_faults_fail(name, fault, outputs):
    arrays, make = modifiers.CASES[name]
    if fault is _without_mask and make(*arrays)[1] is None:
        pytest.skip("the modifier has no mask")
    expect_wrong(name, jax.jit(results_of(fault, make))(*arguments(name)), outputs)


@pytest.mark.parametrize("name", CASES)
def test_a_captured_array_that_does_not_learn_fails(name):
    _, make = modifiers.CASES[name]
    constant = lambda *arrays: make(*map(jax.lax.stop_gradient, arrays))  # noqa: E731
    results = jax.jit(results_of(fused, constant))(*arguments(name))
    assert not results[-1].any()
    expect_wrong(name, results, ["d captured"])
