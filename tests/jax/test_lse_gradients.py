"""The gradient of the log-sum-exp, which a backward gets through columns of the output's dtype."""

import dense_reference as dense
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scoremod.jax import flex_attention

# Between two numbers of 8 and of 11 digits: neither dtype has it.
BETWEEN = 1 + 2**-9 + 2**-13


@pytest.mark.parametrize("sinks", [False, True])  # which get it by the sums of rows
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16, jnp.bfloat16])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_keeps_the_digits_of_a_float32(dtype, sinks, wrap):
    q, k, v = (dense.random_array(i, (2, 24, heads, 16)).astype(dtype) for i, heads in enumerate((4, 2, 2)))
    slopes = jnp.abs(dense.random_array(3, (4,)))
    given = {"sink": jnp.zeros(4)} if sinks else {}

    @wrap
    def gained(factor):
        def loss(slopes):
            alibi = lambda score, b, h, q_idx, kv_idx: score - slopes[h] * jnp.abs(q_idx - kv_idx)  # noqa: E731
            return (factor * flex_attention(q, k, v, alibi, return_lse=True, **given)[1]).sum()

        return jax.grad(loss)(slopes)

    np.testing.assert_allclose(gained(jnp.float32(BETWEEN)), BETWEEN * gained(jnp.float32(1)), rtol=3e-6)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16, jnp.bfloat16])
def test_of_rows_without_a_key_makes_no_nan(dtype):
    q, k, v = (dense.random_array(i, (1, 8, 1, 8)).astype(dtype) for i in range(3))
    below = lambda b, h, q_idx, kv_idx: q_idx > kv_idx  # noqa: E731
    with jax.debug_nans(True):
        gradient = jax.grad(lambda q: (flex_attention(q, k, v, None, below, return_lse=True)[1] ** 2).sum())(q)
    assert jnp.isfinite(gradient).all()
