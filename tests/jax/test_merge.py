"""scoremod.jax.merge: parts of the keys, attended to apart, are attention over all of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scoremod
from scoremod.jax import flex_attention, merge


@pytest.mark.parametrize("layout", ["BSHD", "BHSD"])
@pytest.mark.parametrize("cut", [1, 7, 11])
def test_parts_are_the_whole_with_gradients(layout, cut):
    axis = layout.index("S")
    shape = (2, 12, 3, 8) if layout == "BSHD" else (2, 3, 12, 8)
    q, k, v = jax.random.normal(jax.random.key(cut), (3, *shape))
    slopes = jnp.array([0.1, -0.2, 0.3])

    def attend(q, k, v, slopes, first):
        def score_mod(score, b, h, i, j):
            return score + slopes[h] * (j + first - i)

        return flex_attention(q, k, v, score_mod, lambda b, h, i, j: i >= j + first, layout=layout, return_lse=True)

    def whole(q, k, v, slopes):
        return attend(q, k, v, slopes, 0)

    def in_parts(q, k, v, slopes):
        (k0, k1), (v0, v1) = (jnp.split(x, [cut], axis) for x in (k, v))
        return merge(*attend(q, k0, v0, slopes, 0), *attend(q, k1, v1, slopes, cut), layout=layout)

    def total(function, *inputs):
        o, lse = function(*inputs)
        return (o**2).sum() + jnp.sin(lse).sum()

    for found, expected in zip(in_parts(q, k, v, slopes), whole(q, k, v, slopes)):
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)
    gradients = [jax.grad(total, (1, 2, 3, 4))(function, q, k, v, slopes) for function in (in_parts, whole)]
    for found, expected in zip(*gradients):
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-4)


def test_rows_without_a_key_stay_empty_and_finite():
    o, lse = jnp.zeros((1, 2, 1, 4)), jnp.array([[[-jnp.inf, 1.0]]])
    (merged, merged_lse), pull_back = jax.vjp(lambda o, lse: merge(o, lse, jnp.ones((1, 2, 1, 4)), jnp.full((1, 1, 2), -jnp.inf)), o, lse)
    np.testing.assert_array_equal(merged, o)
    np.testing.assert_array_equal(merged_lse, lse)
    assert all(jnp.isfinite(each).all() for each in pull_back((jnp.ones_like(merged), jnp.array([[[0.0, 1.0]]]))))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((1, 3, 2, 4), (1, 3, 2), (1, 3, 2, 4), (1, 2, 3)), "expected lse of shape"),
        (((1, 3, 2, 4), (1, 2, 3), (1, 3, 2, 5), (1, 2, 3)), "expected other_output of shape"),
        (((3, 2, 4), (1, 2, 3), (3, 2, 4), (1, 2, 3)), "4 dimensions"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(scoremod.InvalidArgumentError, match=message):
        merge(*map(jnp.zeros, arguments))


def test_another_layout_is_refused():
    with pytest.raises(scoremod.InvalidArgumentError, match="layout"):
        merge(*map(jnp.zeros, ((1, 3, 2, 4), (1, 2, 3), (1, 3, 2, 4), (1, 2, 3))), layout="THD")
