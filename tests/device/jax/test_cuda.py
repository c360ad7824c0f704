"""flex_attention through the cudnn backend, under XLA, against the dense computation."""

import dense_reference as dense
import jax
import jax.numpy as jnp
import modifiers
import numpy as np
import pytest
from cuda_devices import cuda_devices

from scoremod.errors import UnsupportedError
from scoremod.jax import flex_attention, support

pytestmark = pytest.mark.skipif(not cuda_devices(), reason="no NVIDIA GPU")

B, H, S, D = 2, 4, 256, 64


def qkv(dtype=jnp.bfloat16, heads_kv=2, seq=S, batch=B, heads=H):
    shapes = [(batch, seq, heads, D), (batch, seq, heads_kv, D), (batch, seq, heads_kv, D)]
    return [dense.random_array(i, shape, dtype) for i, shape in enumerate(shapes)]


def results_of(attention, make, d_o):
    """(o, gradients of q, k, v and the float arrays) as a function of q, k, v and the arrays."""

    def compute(q, k, v, *arrays):
        def loss(*x):
            o = attention(*x[:3], *make(*x[3:]))
            return (o.astype(jnp.promote_types(o.dtype, jnp.float32)) * d_o).sum(), o

        given = (q, k, v, *arrays)
        floats = tuple(i for i, x in enumerate(given) if jnp.issubdtype(x.dtype, jnp.floating))
        (_, o), gradients = jax.value_and_grad(loss, argnums=floats, has_aux=True)(*given)
        return o, gradients

    return compute


def check(make, arrays, q, k, v):
    d_o = dense.random_array(9, q.shape, jnp.float32)
    plain = jax.jit(results_of(dense.attention, make, d_o))(q, k, v, *arrays)
    truth = dense.in_float64(results_of(dense.attention, make, d_o), q, k, v, *arrays)
    result = jax.jit(results_of(flex_attention, make, d_o))(q, k, v, *arrays)
    floats = sum(jnp.issubdtype(x.dtype, jnp.floating) for x in arrays)
    dense.assert_close(result, plain, truth, captured=floats, scores=q.shape[0] * q.shape[2] * q.shape[1] * k.shape[1])
    return result


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("name", modifiers.CASES)
def test_output_and_gradients(name, dtype):
    """The CPU tests' modifiers, in their odd lengths. One that no engine of the GPU can run says why."""
    arrays, make = modifiers.CASES[name]
    batch, heads, seq_q, seq_kv = modifiers.SHAPE
    q = dense.random_array(0, (batch, seq_q, heads, D), dtype)
    k, v = (dense.random_array(i, (batch, seq_kv, 2, D), dtype) for i in (1, 2))
    answers = support(q, k, v, *make(*arrays))
    if answers["cudnn"] and answers["kernels"]:
        pytest.skip("; ".join([*answers["cudnn"], *answers["kernels"]]))
    check(make, arrays, q, k, v)


def learned(slopes, cap, table):
    """Three captured arrays that learn, and a causal mask."""

    def score_mod(score, b, h, q_idx, kv_idx):
        score = score + slopes[h] * (kv_idx - q_idx) + table[h, jnp.clip(q_idx - kv_idx, 0, 31)]
        return cap * jnp.tanh(score / cap)

    return score_mod, lambda b, h, q_idx, kv_idx: q_idx >= kv_idx


def learned_arrays(heads=H):
    return [dense.random_array(11, (heads,), jnp.float32) * 0.1, jnp.float32(20.0), dense.random_array(12, (heads, 32), jnp.float32)]


def test_every_captured_array_learns():
    _, gradients = check(learned, learned_arrays(), *qkv())
    assert all(np.abs(gradient.astype(jnp.float32)).max() > 0 for gradient in gradients)


def test_an_engine_that_lacks_float32_raises_and_says_what_to_do():
    with pytest.raises(UnsupportedError, match='backend="xla"'):
        flex_attention(*qkv(jnp.float32), backends=["cudnn"])


def test_float32_falls_back_where_that_is_asked_for():
    q, k, v = qkv(jnp.float32)
    np.testing.assert_allclose(flex_attention(q, k, v, fallback="xla"), dense.attention(q, k, v), rtol=1e-2, atol=1e-2)


def test_vmap_scan_and_checkpoint_are_the_same_calls():
    make, arrays = learned(*learned_arrays()), qkv()
    attend = jax.jit(lambda q, k, v: flex_attention(q, k, v, *make))
    whole = attend(*arrays)
    mapped = jax.vmap(lambda q, k, v: attend(q[None], k[None], v[None])[0])(*arrays)
    np.testing.assert_array_equal(mapped, whole)
    _, scanned = jax.lax.scan(lambda carry, _: (carry, attend(*arrays)), 0, length=3)
    np.testing.assert_array_equal(scanned[2], whole)
    again = jax.jit(lambda q, k, v: flex_attention(q, k, v, *make, deterministic=True))
    grad = jax.grad(lambda q: again(q, *arrays[1:]).astype(jnp.float32).sum())(arrays[0])
    saved = jax.grad(lambda q: jax.checkpoint(again)(q, *arrays[1:]).astype(jnp.float32).sum())(arrays[0])
    np.testing.assert_array_equal(grad, saved)


def test_new_scalars_build_nothing():
    import scoremod

    attend = jax.jit(lambda cap, *x: flex_attention(*x, lambda s, b, h, q, k: cap * jnp.tanh(s / cap)))
    arrays = qkv()
    attend(jnp.float32(5.0), *arrays).block_until_ready()
    before = scoremod.cache.statistics()["plans"]["builds"]
    first, second = attend(jnp.float32(5.0), *arrays), attend(jnp.float32(50.0), *arrays)
    assert np.abs(np.asarray(first - second, np.float32)).max() > 0
    assert scoremod.cache.statistics()["plans"]["builds"] == before
