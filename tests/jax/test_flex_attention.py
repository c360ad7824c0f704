"""flex_attention and its gradients against the dense computation; test_negative_controls.py has what must not pass."""

import functools

import dense_reference as dense
import jax
import jax.numpy as jnp
import modifiers
import numpy as np
import pytest

from scoremod.jax import flex_attention

DIM = 16


def inputs(dtype=jnp.float32, layout="BSHD", heads_kv=2, dim_v=24):
    """(q, k, v, d_o) of modifiers.SHAPE."""
    batch, heads, seq_q, seq_kv = modifiers.SHAPE
    sizes = [(batch, heads, seq_q, DIM), (batch, heads_kv, seq_kv, DIM), (batch, heads_kv, seq_kv, dim_v), (batch, heads, seq_q, dim_v)]
    order = ["BHSD".index(letter) for letter in layout]
    return [jnp.transpose(dense.random_array(i, size, dtype) * (2 if i < 2 else 1), order) for i, size in enumerate(sizes)]


def loss_of(attention, make, d_o, **options):
    """A loss of q, k, v and the captured arrays, whose gradient is what d_o brings in."""

    def loss(q, k, v, *arrays):
        o = attention(q, k, v, *make(*arrays), **options)
        return (o.astype(jnp.promote_types(o.dtype, jnp.float32)) * d_o).sum()

    return loss


def results_of(attention, make, d_o, **options):
    """(o, gradients of q, k, v and the float arrays) as a function of q, k, v and the arrays."""

    def compute(q, k, v, *arrays):
        floats = tuple(i for i, x in enumerate((q, k, v, *arrays)) if jnp.issubdtype(x.dtype, jnp.floating))
        o = attention(q, k, v, *make(*arrays), **options)
        return o, jax.grad(loss_of(attention, make, d_o, **options), argnums=floats)(q, k, v, *arrays)

    return compute


@functools.cache
def expected(name, dtype, layout):
    """(plain, truth): the dense results in the dtype and in float64."""
    arrays, make = modifiers.CASES[name]
    q, k, v, d_o = inputs(dtype, layout)

    def compute(d_o, q, k, v, *arrays):
        return results_of(dense.attention, make, d_o, layout=layout)(q, k, v, *arrays)

    return jax.jit(compute)(d_o, q, k, v, *arrays), dense.in_float64(compute, d_o, q, k, v, *arrays)


def check(attention, name, dtype=jnp.float32, layout="BSHD", **options):
    arrays, make = modifiers.CASES[name]
    q, k, v, d_o = inputs(dtype, layout)
    plain, truth = expected(name, dtype, layout)
    result = jax.jit(results_of(attention, make, d_o, layout=layout, **options))(q, k, v, *arrays)
    floats = sum(jnp.issubdtype(x.dtype, jnp.floating) for x in arrays)
    dense.assert_close(result, plain, truth, captured=floats, scores=np.prod(modifiers.SHAPE))


@pytest.mark.parametrize("name", modifiers.CASES)
def test_output_and_gradients(name):
    check(flex_attention, name)


@pytest.mark.parametrize("name", ["plain", "relative_bias", "documents", "bucket_search", "gate"])
def test_xla_backend(name, monkeypatch):
    monkeypatch.setattr("scoremod.jax.xla_attention._BLOCK", 16)  # 40 keys: two blocks and a rest
    check(flex_attention, name, backend="xla")


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
@pytest.mark.parametrize("name", ["alibi", "relative_bias", "temperature"])
def test_narrow_dtypes(name, dtype):
    check(flex_attention, name, dtype)


def test_xla_backend_where_all_scores_of_a_row_are_large_and_negative():
    """Their log-sum-exp has no digit left of the number of keys."""
    q, k, v, d_o = inputs(heads_kv=4)
    modifier = lambda score, b, h, q_idx, kv_idx: jnp.where((q_idx >= kv_idx) & (q_idx != 4), score, -1e9)  # noqa: E731

    def results(attention, d_o, *x):
        return attention(*x, modifier), jax.grad(lambda *x: (attention(*x, modifier) * d_o).sum(), argnums=(0, 1, 2))(*x)

    attention = functools.partial(flex_attention, backend="xla")
    truth = dense.in_float64(functools.partial(results, dense.attention), d_o, q, k, v)
    found, plain = (jax.jit(functools.partial(results, each))(d_o, q, k, v) for each in (attention, dense.attention))
    dense.assert_close(found, plain, truth)


def test_the_xla_backends_memory_is_linear():
    """Four times the sequence takes four times the scratch, forward and backward; the dense computation takes sixteen times."""

    def scratch(attention, seq):
        q = jax.ShapeDtypeStruct((1, seq, 2, 16), jnp.float32)
        loss = lambda q: attention(q, q, q, lambda score, *_: jnp.tanh(score), modifiers.causal).sum()  # noqa: E731
        return jax.jit(jax.grad(loss)).lower(q).compile().memory_analysis().temp_size_in_bytes

    assert scratch(functools.partial(flex_attention, backend="xla"), 4096) < 5 * scratch(functools.partial(flex_attention, backend="xla"), 1024)
    assert scratch(dense.attention, 4096) > 10 * scratch(dense.attention, 1024)


@pytest.mark.parametrize("layout", ["SBHD", "BHSD"])
def test_layouts(layout):
    check(flex_attention, "alibi", layout=layout)


def test_reference_backend():
    check(flex_attention, "soft_cap", backend="reference")


def test_it_runs_without_jit():
    q, k, v, _ = inputs()
    arrays, make = modifiers.CASES["gate"]
    eager = flex_attention(q, k, v, *make(*arrays))
    np.testing.assert_array_equal(eager, jax.jit(lambda *x: flex_attention(*x, *make(*arrays)))(q, k, v))


@pytest.mark.parametrize("scale", [0.5, jnp.float32(0.5)])
def test_scale(scale):
    q, k, v, d_o = inputs()
    got, want = (
        jax.value_and_grad(lambda s: (f(q, k, v, mask_mod=modifiers.causal, scale=s) * d_o).sum())(jnp.float32(scale))  # noqa: B023
        for f in (flex_attention, dense.attention)
    )
    np.testing.assert_allclose(got, want, rtol=1e-4)
    o = flex_attention(q, k, v, mask_mod=modifiers.causal, scale=scale)
    np.testing.assert_allclose(o, dense.attention(q, k, v, mask_mod=modifiers.causal, scale=0.5), atol=1e-5)


def test_lse_and_its_gradient():
    arrays, make = modifiers.CASES["alibi"]
    q, k, v, d_o = inputs()
    d_lse = dense.random_array(9, (modifiers.BATCH, modifiers.HEADS, modifiers.SEQ_Q))

    def compute(attention, d_o, d_lse, q, k, v, slopes):
        def loss(*x):
            o, lse = attention(*x[:3], *make(x[3]))
            return (o * d_o).sum() + (lse * d_lse).sum()

        return attention(q, k, v, *make(slopes)), jax.grad(loss, argnums=(0, 1, 2, 3))(q, k, v, slopes)

    plain = jax.jit(functools.partial(compute, dense.attention_and_lse))(d_o, d_lse, q, k, v, *arrays)
    truth = dense.in_float64(functools.partial(compute, dense.attention_and_lse), d_o, d_lse, q, k, v, *arrays)
    for backend in ("cpu", "reference", "xla"):
        attention = functools.partial(flex_attention, return_lse=True, backend=backend)
        result = jax.jit(functools.partial(compute, attention))(d_o, d_lse, q, k, v, *arrays)
        dense.assert_close(result, plain, truth, captured=1, scores=np.prod(modifiers.SHAPE))


def test_rows_without_a_key():
    q, k, v, d_o = inputs()
    none = lambda b, h, q_idx, kv_idx: (q_idx != 5) & (kv_idx < 7)  # noqa: E731
    (o, lse), gradients = (
        flex_attention(q, k, v, mask_mod=none, return_lse=True),
        jax.grad(lambda *x: (flex_attention(*x, mask_mod=none) * d_o).sum(), argnums=(0, 1, 2))(q, k, v),
    )
    assert not o[:, 5].any() and np.isneginf(lse[:, :, 5]).all() and not gradients[0][:, 5].any()
    assert all(np.isfinite(x).all() for x in gradients) and not gradients[1][:, 7:].any()
