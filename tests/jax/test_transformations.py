"""jit, vmap, checkpoint, scan and differentiation of flex_attention."""

import functools

import dense_reference as dense
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scoremod.jax
from scoremod.jax import flex_attention

B, S, H, D = 2, 17, 4, 8


def qkv(*leading, seed=0):
    return [dense.random_array(seed + i, (*leading, B, S, H, D)) for i in range(3)]


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def biased(attention, q, k, v, slopes, table, batch_bias, **options):
    """Reads b, h, an operand over the batch, and a table."""

    def score_mod(score, b, h, q_idx, kv_idx):
        return score * (1 + 0.25 * b) + slopes[h] * (q_idx - kv_idx) + table[q_idx - kv_idx + S - 1] + batch_bias[b, kv_idx]

    return attention(q, k, v, score_mod, causal, **options)


ARRAYS = [dense.random_array(7, (H,)), dense.random_array(8, (2 * S - 1,)), dense.random_array(9, (B, S))]
N = 3
MAPPED = [dense.random_array(17, (N, H)), dense.random_array(18, (N, 2 * S - 1)), dense.random_array(19, (N, B, S))]


def close(got, want, tolerance=3e-5):
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(x, y, atol=tolerance * max(1, np.abs(y).max()))


@pytest.mark.parametrize("mapped", [(0, 1, 2), (0,), (3,), (4,), (5,), (0, 1, 2, 3, 4, 5)])
@pytest.mark.parametrize("layout", ["BSHD", "SBHD"])
def test_vmap_is_a_loop(mapped, layout):
    singles, stacked = [*qkv(), *ARRAYS], [*qkv(N, seed=3), *MAPPED]
    arguments = [stacked[i] if i in mapped else singles[i] for i in range(6)]
    arguments[:3] = [jnp.swapaxes(x, -3, -4) if layout == "SBHD" else x for x in arguments[:3]]
    axes = [0 if i in mapped else None for i in range(6)]

    def compute(*x):
        loss = lambda *x: (biased(flex_attention, *x, layout=layout) ** 2).sum()  # noqa: E731
        return biased(flex_attention, *x, layout=layout, return_lse=True), jax.grad(loss, argnums=tuple(range(6)))(*x)

    got = jax.vmap(compute, axes)(*arguments)
    each = jax.jit(compute)
    loop = [each(*(x[n] if i in mapped else x for i, x in enumerate(arguments))) for n in range(N)]
    close(got, jax.tree.map(lambda *x: jnp.stack(x), *loop))


def test_vmap_over_another_axis_and_gradient_of_vmap():
    q, k, v = qkv(N, seed=3)
    together = lambda x: jax.vmap(lambda q, k, v: biased(flex_attention, q, k, v, *x), (1, 0, 0))(jnp.swapaxes(q, 0, 1), k, v)  # noqa: E731
    apart = lambda x: jnp.stack([biased(flex_attention, q[n], k[n], v[n], *x) for n in range(N)])  # noqa: E731
    close(jax.grad(lambda x: (together(x) ** 2).sum())(ARRAYS), jax.grad(lambda x: (apart(x) ** 2).sum())(ARRAYS))


def test_checkpoint_and_scan():
    q, k, v = qkv()

    def layers(attention, slopes):
        @jax.checkpoint
        def layer(x, slope):
            return x + biased(attention, x, k, v, slope, *ARRAYS[1:]), None

        return (jax.lax.scan(layer, q, slopes)[0] ** 2).sum()

    got, want = (jax.jit(jax.value_and_grad(functools.partial(layers, f)))(MAPPED[0]) for f in (flex_attention, dense.attention))
    close(got, want)


def test_only_wanted_gradients_are_computed():
    q, k, v = qkv()
    jaxpr = jax.make_jaxpr(jax.grad(lambda q, *x: biased(flex_attention, q, k, v, *x).sum(), argnums=(0, 2)))(q, *ARRAYS)
    text = str(jaxpr)
    assert text.count("scoremod_attention_backward") == 1 and "wanted=(1,)" in text.replace(" ", "")


def test_integer_arrays_have_no_gradient():
    q, k, v = qkv()
    ids = jnp.arange(B * S).reshape(B, S) // 5

    def loss(ids, q):
        return flex_attention(q, k, v, None, lambda b, h, q_idx, kv_idx: ids[b, q_idx] == ids[b, kv_idx]).sum()

    gradient = jax.grad(loss, allow_int=True)(ids, q)
    assert gradient.dtype == jax.dtypes.float0


def test_a_second_derivative_raises():
    q, k, v = qkv()
    loss = lambda q: (flex_attention(q, k, v) ** 2).sum()  # noqa: E731
    with pytest.raises(scoremod.UnsupportedError, match="first derivatives in reverse mode"):
        jax.grad(lambda q: jax.grad(loss)(q).sum())(q)


@pytest.mark.parametrize(
    "differentiate",
    [
        lambda loss, q: jax.jvp(loss, (q,), (q,)),
        lambda loss, q: jax.jit(lambda q: jax.jvp(loss, (q,), (q,)))(q),
        lambda loss, q: jax.jvp(jax.jit(loss), (q,), (q,)),
        lambda loss, q: jax.linearize(loss, q)[1](q),
        lambda loss, q: jax.jacfwd(loss)(q),
        lambda loss, q: jax.hessian(loss)(q),
    ],
    ids=["jvp", "jit of jvp", "jvp of jit", "linearize", "jacfwd", "hessian"],
)
@pytest.mark.parametrize("paged", [False, True])
def test_forward_mode_raises_and_names_the_way_out(differentiate, paged):
    q, k, v = qkv()
    # Each batch's keys as one page.
    pages = {"page_table": jnp.arange(k.shape[0])[:, None], "lengths": jnp.full(k.shape[0], k.shape[1])} if paged else {}
    with pytest.raises(scoremod.UnsupportedError, match='cannot differentiate flex_attention in forward mode .*backend="xla" has both'):
        differentiate(lambda q: (flex_attention(q, k, v, lambda score, *_: jnp.tanh(score), **pages) ** 2).sum(), q)


@pytest.mark.parametrize("policy, forwards", [(None, 2), (scoremod.jax.CHECKPOINT_NAMES, 1), ("dots", 1)])
def test_checkpoint_runs_the_forward_again_unless_a_policy_keeps_its_results(policy, forwards):
    q, k, v = qkv()
    policies = jax.checkpoint_policies
    if policy == "dots":
        policy = policies.save_from_both_policies(policies.dots_saveable, policies.save_only_these_names(*scoremod.jax.CHECKPOINT_NAMES))
    elif policy is not None:
        policy = policies.save_only_these_names(*policy)

    def loss(attention, x, slopes, table, bias):
        layer = lambda x, *arrays: biased(attention, jnp.sin(x), k, v, *arrays)  # noqa: E731
        return (jax.checkpoint(layer, policy=policy)(x, slopes, table, bias) ** 2).sum()

    gradient, want = (jax.grad(functools.partial(loss, f), argnums=(0, 1, 2, 3)) for f in (flex_attention, dense.attention))
    # In JAX's own words: XLA may find on a CPU that both are the same.
    assert str(jax.make_jaxpr(gradient)(q, *ARRAYS)).count("scoremod_attention_forward[") == forwards
    close(jax.jit(gradient)(q, *ARRAYS), want(q, *ARRAYS))


def curved(attention, q, k, v, bias):
    """A loss of few scores, all of whose second derivatives matter; with keys that are not kept, and a query that has none."""

    def score_mod(score, b, h, q_idx, kv_idx):
        return jnp.tanh(score) * bias[h, kv_idx]

    return (attention(q, k, v, score_mod, lambda b, h, q_idx, kv_idx: kv_idx < q_idx) ** 3).sum()


def few():
    q, k, v = (x[:1, :5, :2] for x in qkv())
    return q, k, v, dense.random_array(4, (2, 5))


@pytest.mark.parametrize(
    "differentiate",
    [
        lambda loss: lambda *x: jax.jvp(loss, x, x),
        lambda loss: lambda *x: jax.jvp(jax.jit(loss), x, x)[1],
        lambda loss: lambda *x: jax.linearize(loss, *x)[1](*x),
        lambda loss: jax.jacfwd(loss, argnums=(0, 1, 2, 3)),
        lambda loss: jax.hessian(loss, argnums=(0, 3)),
        lambda loss: jax.jacrev(jax.jacfwd(loss, argnums=2), argnums=(1, 3)),
        lambda loss: jax.grad(lambda q, *x: (jax.grad(loss)(q, *x) ** 2).sum(), argnums=(0, 1)),
        lambda loss: jax.vmap(jax.grad(loss, argnums=(0, 3)), (None, None, None, 0)),
        lambda loss: jax.grad(lambda q, k, v, b: jax.vmap(loss, (None, None, 0, 0))(q, k, v, b).sum(), argnums=(0, 2, 3)),
        lambda loss: jax.vmap(jax.hessian(loss), (0, None, None, 0)),
    ],
    ids=["jvp", "jvp of jit", "linearize", "jacfwd", "hessian", "jacrev of jacfwd", "grad of grad", "vmap of grad", "grad of vmap",
         "vmap of hessian"],
)  # fmt: skip
def test_the_xla_backend_has_derivatives_of_every_order_and_mode(differentiate, request):
    arguments = list(few())
    if "vmap" in request.node.callspec.id:
        mapped = {"vmap of grad": (3,), "grad of vmap": (2, 3), "vmap of hessian": (0, 3)}[request.node.callspec.id]
        arguments = [jnp.stack([x, x * 0.5, -x]) if i in mapped else x for i, x in enumerate(arguments)]
    got, want = (
        jax.jit(differentiate(functools.partial(curved, attention)))(*arguments)
        for attention in (functools.partial(flex_attention, backend="xla"), dense.attention)
    )
    close(got, want, 1e-4)


def test_forward_mode_of_the_xla_backend_over_several_blocks_of_keys():
    """600 keys are three blocks, the last one shorter."""
    q = dense.random_array(0, (1, 3, 4, 8))
    k, v = (dense.random_array(i, (1, 600, 2, 8)) for i in (1, 2))
    slopes = dense.random_array(3, (4,))

    def tangent(attention):
        call = lambda q, k, v, slopes: attention(q, k, v, lambda score, b, h, i, j: score + slopes[h] * (j % 7))  # noqa: E731
        return jax.jit(lambda *x: jax.jvp(call, x, x))(q, k, v, slopes)

    close(tangent(functools.partial(flex_attention, backend="xla")), tangent(dense.attention))


@pytest.mark.parametrize("mapped", [False, True])
def test_reverse_mode_of_the_xla_backend_keeps_no_scores(mapped):
    """All that the backward pass gets grows with the sequence, not with its square."""
    q = dense.random_array(0, (1, 2048, 1, 8))
    attention = lambda q: flex_attention(q, q, q, backend="xla")  # noqa: E731
    pull_back = jax.vjp(jax.vmap(attention) if mapped else attention, q[None] if mapped else q)[1]
    sizes = [x.size for x in jax.tree.leaves(pull_back)]
    assert q.size <= max(sizes) < 2048 * 2048 // 8
