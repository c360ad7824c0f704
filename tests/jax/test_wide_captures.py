"""Gradients of captured arrays of 16 bits on XLA, whose sums have more digits than the arrays."""

import dense_reference as dense
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scoremod.jax import flex_attention

B, S, H, D = 1, 512, 2, 8
Q, K, V, D_O = (dense.random_array(i, (B, S, H, D)) for i in range(4))
TABLES = np.linspace(-1, 2, 2 * 3).reshape(2, 3)

FORMS = {
    "computed index": lambda t: lambda score, b, h, i, j: score + t[h, (7 * i + j) % 3],
    "row, then column": lambda t: lambda score, b, h, i, j: score + t[h][(7 * i + j) % 3],
    "reshaped": lambda t: lambda score, b, h, i, j: score + t.reshape(-1)[3 * h + (7 * i + j) % 3],
    "taken": lambda t: lambda score, b, h, i, j: score + jnp.take(t[h], (7 * i + j) % 3),
    "chosen, then computed with": lambda t: lambda score, b, h, i, j: score * (1 + jnp.tanh(t[h, (7 * i + j) % 3]) * t[0, 1]),
    "slope": lambda t: lambda score, b, h, i, j: score + t[h, 0] * jnp.float32(1e-3) * (j - i),
}


# Arithmetic of two captured numbers is in their dtype, and in bfloat16 that alone is 6 % off.
CASES = [(form, dtype) for dtype in (jnp.float16, jnp.bfloat16) for form in FORMS if dtype == jnp.float16 or form != "chosen, then computed with"]


@pytest.mark.parametrize("form, dtype", CASES)
def test_long_sums_lose_no_terms(form, dtype):
    # The loss of the same numbers in float32 sums each term with all its digits.
    def loss(tables):
        return jnp.sum(flex_attention(Q, K, V, FORMS[form](tables), backend="xla") * D_O)

    rounded = jnp.asarray(TABLES, dtype)
    exact = np.asarray(jax.grad(loss)(rounded.astype(jnp.float32)), np.float64)
    mine = jax.grad(loss)(rounded)
    assert mine.dtype == dtype
    # Each score's own term is rounded, too.
    np.testing.assert_allclose(np.asarray(mine, np.float64), exact, rtol=4 * float(jnp.finfo(dtype).eps), atol=2e-3 * np.abs(exact).max())


def test_values_are_those_of_the_array():
    def o(dtype, form):
        return flex_attention(Q, K, V, FORMS[form](jnp.asarray(TABLES, jnp.bfloat16).astype(dtype)), backend="xla")

    for form in ("computed index", "row, then column", "reshaped", "taken"):
        np.testing.assert_array_equal(o(jnp.bfloat16, form), o(jnp.float32, form))
