"""Arguments that are no arrays, are empty, or mean nothing: the error names them and what was expected, instead of one of JAX's own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scoremod
from scoremod.jax import flex_attention, fused_attention
from scoremod.jax.context_parallel import context_parallel_attention

Q = jnp.ones((2, 4, 2, 8), jnp.float32)
FLOAT8 = Q.astype(jnp.float8_e5m2)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: flex_attention(None, Q, Q), "query: expected an array of float32, float16, .* found NoneType"),
        (lambda: flex_attention(Q, "k", Q), "key: expected an array .* found str"),
        (lambda: flex_attention(Q, Q, jax.random.key(0)), "value: expected an array .* found key<fry>"),
        (lambda: flex_attention(Q, Q, [[1.0], [2.0, 3.0]]), "value: expected an array .* found list"),
        (lambda: context_parallel_attention(Q, object(), Q, axis_name="x"), "key: expected an array .* found object"),
        (lambda: fused_attention(Q, Q, None), "value: expected an array .* found NoneType"),
        (lambda: flex_attention(Q, Q, Q, lengths="ab"), "lengths: expected an integer array of shape .2,., .* found str"),
        (lambda: flex_attention(Q, Q, Q, lengths={}), "lengths: expected an integer array of shape .2,., .* found dict"),
        (lambda: flex_attention(Q, Q, Q, lengths=(None, None, None)), "lengths: expected an integer array .* or a pair .* found 3"),
        (lambda: flex_attention(Q, Q, Q, sink="a"), "sink: expected a float array of shape .2,., .* found str"),
        (lambda: flex_attention(Q, Q, Q, sink=True), "sink: expected a float array of shape .2,., .* found bool of shape"),
        (lambda: flex_attention(Q, Q, Q, scale=True), "scale: expected a finite number that float32 holds, found True"),
        (lambda: flex_attention(FLOAT8, FLOAT8, FLOAT8, out_dtype="junk"), "out_dtype: expected one of float32, .*, found 'junk'"),
    ],
)
def test_they_are_named(call, message):
    with pytest.raises(scoremod.InvalidArgumentError, match=message):
        call()


def test_a_sink_may_be_a_whole_number():
    np.testing.assert_array_equal(flex_attention(Q, Q, Q, sink=2), flex_attention(Q, Q, Q, sink=2.0))


@pytest.mark.parametrize("dtype", [jnp.float8_e4m3fn, jnp.float16, jnp.float32])
def test_rows_without_keys_are_of_the_calls_dtypes(dtype):
    q, none = Q.astype(dtype), Q[:, :0].astype(dtype)
    o, lse, largest = flex_attention(q, none, none, return_lse=True, return_max_logit=True)
    assert o.dtype == (jnp.bfloat16 if dtype == jnp.float8_e4m3fn else dtype) and not o.any()
    assert lse.dtype == largest.dtype == jnp.float32 and jnp.isneginf(lse).all() and jnp.isneginf(largest).all()
    gradient = jax.grad(lambda q: flex_attention(q, none, none).astype(jnp.float32).sum())(q)
    assert gradient.dtype == dtype and not gradient.astype(jnp.float32).any()


def test_no_calls_at_all_are_mapped():
    none = jnp.zeros((0, *Q.shape))
    attend = lambda q: flex_attention(q, Q, Q, return_lse=True)  # noqa: E731
    o, lse = jax.vmap(attend, in_axes=2, out_axes=1)(jnp.moveaxis(none, 0, 2))
    assert o.shape == (2, 0, 4, 2, 8) and lse.shape == (2, 0, 2, 4)
    assert jax.vmap(jax.grad(lambda q: attend(q)[0].sum()))(none).shape == none.shape


@pytest.mark.parametrize(
    "mask_mod, message",
    [
        (lambda b, h, i, j: None, "mask_mod: expected it to return one scalar, found nothing"),
        (lambda b, h, i, j: 1.5, "mask_mod: expected it to return whether the key is kept as bool, found float32"),
        (lambda b, h: True, "mask_mod: expected a function of"),
        (3, "mask_mod: expected a function, found 3"),
    ],
    ids=["nothing", "float", "arguments", "number"],
)
@pytest.mark.parametrize("beside", [{}, {"lengths": jnp.array([1, 2])}, {"token_list": jnp.zeros((2, 4, 1), jnp.int32)}], ids=["alone", "lengths", "list"])
def test_no_mask_is_named_beside_others(mask_mod, message, beside):
    with pytest.raises(scoremod.InvalidArgumentError, match=message):
        flex_attention(Q, Q, Q, mask_mod=mask_mod, **beside)
