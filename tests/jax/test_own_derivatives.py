"""Score functions with derivatives of their own: jax.custom_jvp, jax.custom_vjp, stop_gradient, and callbacks whose backward is trusted. All
against the same functions in dense attention, which JAX differentiates."""

import contextlib

import dense_reference as dense
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scoremod
from scoremod.jax import flex_attention, fused_attention

B, S, H, D = 2, 12, 2, 8
Q, K, V, W = (dense.random_array(i, (B, S, H, D)) for i in range(4))
SLOPES = dense.random_array(9, (H,))


@jax.custom_jvp
def rounded(x):
    return jnp.round(x)


rounded.defjvps(lambda t, _, x: t)


@jax.custom_vjp
def clipped(x, limit):
    return jnp.clip(x, -limit, limit)


def _clipped_forward(x, limit):
    return clipped(x, limit), (x, limit)


def _clipped_backward(kept, g):
    x, limit = kept
    return g * jnp.exp(-jnp.abs(x)), 0.5 * g * jnp.sign(x) * jnp.cos(clipped(x, limit))


clipped.defvjp(_clipped_forward, _clipped_backward)


@jax.custom_jvp
def own_square(x):
    return x * x


@own_square.defjvp
def _own_square_rule(primals, tangents):
    (x,), (t,) = primals, tangents
    return own_square(x), 3 * own_square(x) * t  # reads its own value


@pytest.mark.parametrize("backend", ["cpu", "reference", "xla"])
@pytest.mark.parametrize(
    "make",
    [
        lambda x: lambda s, b, h, i, j: rounded(s * 2) * (1 + x[h]),
        lambda x: lambda s, b, h, i, j: clipped(s, jnp.abs(x[h])),
        lambda x: lambda s, b, h, i, j: own_square(0.5 * s + x[h]) * jax.lax.stop_gradient(x[h]),
        lambda x: lambda s, b, h, i, j: s + jax.lax.stop_gradient(jnp.round(s) - s) * x[h],
        lambda x: lambda s, b, h, i, j: jnp.where(i >= j, rounded(s) * x[h], -jnp.inf),
        lambda x: lambda s, b, h, i, j: jax.nn.gelu(s, approximate=False) + jnp.arctan2(s, 2.0 + x[h] ** 2) + jnp.arctan(s * x[h]),
    ],
)
def test_derivatives_are_those_of_the_rules(make, backend):
    def results(attention, *arrays):
        def loss(q, k, v, x):
            return (attention(q, k, v, make(x)) * W).sum()

        return attention(*arrays[:3], make(arrays[3])), *jax.grad(loss, argnums=(0, 1, 2, 3))(*arrays)

    if backend == "reference":
        found = results(lambda *x: flex_attention(*x, backend="reference"), Q, K, V, SLOPES)
    else:
        found = jax.jit(lambda *x: results(lambda *y: flex_attention(*y, backend=backend), *x))(Q, K, V, SLOPES)
    truth = dense.in_float64(lambda *x: results(dense.attention, *x), Q, K, V, SLOPES)
    plain = results(dense.attention, Q, K, V, SLOPES)
    dense.assert_close(found, plain, truth, captured=1, scores=B * H * S * S)


def step(graph, score, tensors):
    return graph.mul(graph.floor(graph.mul(score, tensors["scale"])), 0.5)


def straight_through(graph, dscore, tensors):
    return graph.mul(graph.mul(dscore, tensors["scale"]), 0.5)


@pytest.mark.parametrize("backend", ["cpu", "xla"])
def test_a_trusted_backward_runs(backend):
    numbers = {"scale": jnp.float32(3.0)}

    def loss(q, scale):
        o = fused_attention(
            q, K, V, score_mod=step, score_mod_bprop=straight_through, score_mod_tensors={"scale": scale},
            score_mod_bprop_tensors={"scale": scale}, trust_bprop=True, backend=backend,
        )  # fmt: skip
        return (o * W).sum()

    def want(q, scale):
        return (flex_attention(q, K, V, lambda s, *_: rounded_down(s * jax.lax.stop_gradient(scale)) * 0.5, backend="xla") * W).sum()

    rounded_down = jax.custom_jvp(jnp.floor)
    rounded_down.defjvps(lambda t, _, x: t)
    found = jax.jit(jax.grad(loss, argnums=(0, 1)))(Q, numbers["scale"])
    np.testing.assert_allclose(found[0], jax.grad(want)(Q, numbers["scale"]), rtol=1e-4, atol=1e-5)
    assert np.abs(found[0]).max() > 0.01
    assert found[1] == 0  # by a tensor the derivative stays that of score_mod


def test_without_trust_it_is_compared():
    tensors = {"score_mod_tensors": {"scale": 3.0}, "score_mod_bprop_tensors": {"scale": 3.0}}
    with pytest.raises(scoremod.InvalidArgumentError, match="expected the derivative of score_mod"):
        fused_attention(Q, K, V, score_mod=step, score_mod_bprop=straight_through, **tensors)


def limited(graph, dscore, tensors):
    return graph.mul(graph.max(graph.min(dscore, 0.02), -0.02), tensors["factor"])


@jax.custom_vjp
def with_limited_gradient(x):
    return x * 2


with_limited_gradient.defvjp(lambda x: (x * 2, None), lambda _, g: (jnp.clip(g, -0.02, 0.02),))


def doubled(graph, score, tensors):
    return graph.mul(score, tensors["factor"])


def limited_loss(attention, q, factor):
    return (attention(q, factor) * W).sum()


NOT_LINEAR = {
    "a callback": lambda q, factor, **options: fused_attention(
        q, K, V, score_mod=doubled, score_mod_bprop=limited, score_mod_tensors={"factor": factor}, score_mod_bprop_tensors={"factor": jnp.ones(())},
        trust_bprop=True, **options,
    ),
    "a function": lambda q, factor, **options: flex_attention(q, K, V, lambda s, *_: with_limited_gradient(s) * (factor / 2), **options),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_LINEAR)
def test_a_backward_that_is_not_linear_runs_on_xla_alone(name):
    """A program's derivative is a factor: taken at one gradient, one that limits its argument would limit nothing."""
    attention = NOT_LINEAR[name]
    with pytest.raises(scoremod.UnsupportedError, match='is not known to be a multiple of the gradient.*backend="xla"'):
        attention(Q, jnp.float32(2))

    def dense_attention(q, factor):
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, K) / np.sqrt(D)
        p = jax.nn.softmax(with_limited_gradient(scores), axis=-1)
        return jnp.einsum("bhqk,bkhd->bqhd", p, V)

    want = jax.grad(lambda q: (dense_attention(q, 2) * W).sum())(Q)
    unlimited = jax.grad(lambda q: (dense.attention(q, K, V, lambda s, *_: 2 * s) * W).sum())(Q)
    assert np.abs(want - unlimited).max() > 1e-2
    for options in ({"backend": "xla"}, {"fallback": "xla"}):
        found = jax.jit(jax.grad(lambda q, options=options: limited_loss(lambda *x: attention(*x, **options), q, jnp.float32(2))))(Q)
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


def test_a_tensors_gradient_is_derived_beside_a_backward_that_is_not_linear():
    run = lambda bprop: jax.grad(  # noqa: E731
        lambda factor: (
            fused_attention(
                Q, K, V, score_mod=doubled, score_mod_tensors={"factor": factor}, backend="xla",
                **({"score_mod_bprop": limited, "score_mod_bprop_tensors": {"factor": 1.0}, "trust_bprop": True} if bprop else {}),
            )
            * W
        ).sum()
    )(jnp.float32(2))  # fmt: skip
    np.testing.assert_allclose(run(True), run(False), rtol=1e-5)


@pytest.mark.parametrize(
    ("rule", "linear"),
    [
        (lambda x, g: jnp.where(x > 0, g, 0.0), True),
        (lambda x, g: jnp.where(x > 0, g, 0.5), False),
        (lambda x, g: jnp.where(g > 0, g, 0.0), False),
        (lambda x, g: g / (1 + x * x) - 2 * g, True),
        (lambda x, g: x / g, False),
        (lambda x, g: g + x, False),
        (lambda x, g: g * g, False),
        (lambda x, g: jax.lax.cond(x > 0, lambda g: 2 * g, lambda g: jnp.zeros_like(g), g), True),
        (lambda x, g: jax.lax.cond(x > 0, lambda g: 2 * g, lambda g: jnp.ones_like(g), g), False),
        (lambda x, g: jax.nn.relu(x) * g.astype(jnp.float16).astype(jnp.float32), True),
        (lambda x, g: jnp.clip(g, -1, 1), False),
        (lambda x, g: x, False),
        (lambda x, g: jnp.zeros_like(x), True),
    ],
)
def test_which_rules_are_linear(rule, linear):
    function = jax.custom_vjp(lambda x: x + 1)
    function.defvjp(lambda x: (x + 1, x), lambda x, g: (rule(x, g),))
    call = lambda: flex_attention(Q, K, V, lambda s, *_: function(s))  # noqa: E731
    with contextlib.nullcontext() if linear else pytest.raises(scoremod.UnsupportedError, match="is not known to be a multiple of the gradient"):
        call()
