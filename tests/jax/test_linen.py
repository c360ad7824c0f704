"""The Flax modules."""

import dense_reference as dense
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scoremod
from scoremod.jax import flex_attention, zoo
from scoremod.jax.linen import DotProductAttention, MultiHeadAttention

B, S, H, D = 2, 10, 4, 8


@pytest.mark.parametrize("layout", ["BSHD", "SBHD"])
def test_packed_arrays(layout):
    q, k, v = (dense.random_array(i, (B, S, H, D)) for i in range(3))
    module = DotProductAttention(mask_mod=zoo.causal(), layout=layout)
    want = flex_attention(q, k, v, mask_mod=zoo.causal(), layout=layout)
    calls = [(q, k, v), (q, jnp.stack([k, v], axis=2)), (jnp.stack([q, k, v], axis=2),)]
    for arguments in calls:
        np.testing.assert_array_equal(module.apply({}, *arguments), want)
    with pytest.raises(scoremod.InvalidArgumentError, match="packed array with 3"):
        module.apply({}, q)


class Block(nn.Module):
    """A score function that captures a parameter."""

    @nn.compact
    def __call__(self, x):
        table = self.param("table", nn.initializers.normal(1.0), (H, 9))
        attention = MultiHeadAttention(num_heads=H, num_kv_heads=2, mask_mod=zoo.causal())
        return attention(x, score_mod=zoo.relative_table(table))


def test_a_block_learns():
    x = dense.random_array(0, (B, S, H * D))
    variables = Block().init(jax.random.key(0), x)
    params = variables["params"]

    def reference(params):
        project = lambda name: jnp.einsum("bsf,fhd->bshd", x, params["MultiHeadAttention_0"][name]["kernel"])  # noqa: E731
        o = dense.attention(*map(project, ("query", "key", "value")), zoo.relative_table(params["table"]), zoo.causal())
        return jnp.einsum("bshd,hdf->bsf", o, params["MultiHeadAttention_0"]["out"]["kernel"])

    np.testing.assert_allclose(Block().apply(variables, x), reference(params), atol=1e-5)
    got, want = (
        jax.jit(jax.grad(lambda p, f=f: (f(p) ** 2).mean()))(params)
        for f in (lambda p: Block().apply({"params": p}, x), reference)
    )
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
        assert np.abs(a).max() > 0


def test_mistakes():
    x = jnp.ones((B, S, 30))
    with pytest.raises(scoremod.InvalidArgumentError, match="divisor of the 30 features, found 4"):
        MultiHeadAttention(num_heads=4).init(jax.random.key(0), x)


@pytest.mark.parametrize("module", [lambda **fields: DotProductAttention(**fields), lambda **fields: MultiHeadAttention(num_heads=2, **fields)])
def test_flax_name_of_having_no_dropout_is_not_taken_for_deterministic_gradients(module):
    for value in True, False:
        with pytest.raises(scoremod.InvalidArgumentError, match="deterministic: .*dropout.*deterministic_gradients"):
            module(deterministic=value)
    assert module(deterministic_gradients=True).deterministic_gradients
