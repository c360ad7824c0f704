"""Score functions with derivatives of their own: jax.custom_jvp, jax.custom_vjp, stop_gradient, and callbacks whose backward is trusted. All
against the same functions in dense attention, which JAX differentiates."""

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


def test_without_trust_it_is_compared_and_with_it_must_be_linear():
    tensors = {"score_mod_tensors": {"scale": 3.0}, "score_mod_bprop_tensors": {"scale": 3.0}}
    with pytest.raises(scoremod.InvalidArgumentError, match="expected the derivative of score_mod"):
        fused_attention(Q, K, V, score_mod=step, score_mod_bprop=straight_through, **tensors)
    limited = lambda graph, dscore, tensors: graph.min(dscore, 0.5)  # noqa: E731
    with pytest.raises(scoremod.InvalidArgumentError, match="expected a multiple of its argument"):
        fused_attention(Q, K, V, score_mod=step, score_mod_bprop=limited, trust_bprop=True, **tensors)
