"""With JAX's 64-bit types, where Python's and NumPy's numbers become float64 and int64."""

import dense_reference as dense
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scoremod
from scoremod.jax import explain, flex_attention, fused_attention, zoo

B, S, H, D = 2, 12, 4, 8


@pytest.fixture(autouse=True)
def with_64_bit_types():
    with jax.enable_x64(True):
        yield


def qkv(dtype=np.float32):
    return [jnp.asarray(np.random.default_rng(i).normal(size=(B, S, H, D)), dtype) for i in range(3)]


SLOPES = [0.5, 0.25, 0.125, 0.0625]


@pytest.mark.filterwarnings("error")
def test_captured_64_bit_arrays_are_taken_as_32_bits():
    q, k, v = qkv()
    slopes, ids = jnp.asarray(SLOPES), jnp.asarray(np.arange(B * S).reshape(B, S) // 5)
    assert slopes.dtype == np.float64 and ids.dtype == np.int64

    def loss(slopes, **options):
        score_mod = lambda score, b, h, q_idx, kv_idx: score + (slopes * 2.0)[h] * (kv_idx - q_idx) + np.float64(0.5)  # noqa: E731
        mask_mod = lambda b, h, q_idx, kv_idx: (ids[b, q_idx] == ids[b, kv_idx]) | (kv_idx < np.int64(2))  # noqa: E731
        return (flex_attention(q, k, v, score_mod, mask_mod, **options) ** 2).sum()

    value, gradient = jax.jit(jax.value_and_grad(loss))(slopes)
    want, want_gradient = jax.value_and_grad(loss)(slopes, backend="xla")
    assert gradient.dtype == np.float64 and value.dtype == np.float32
    np.testing.assert_allclose(value, want, rtol=1e-5)
    np.testing.assert_allclose(gradient, want_gradient, rtol=1e-4)


def test_the_program_is_the_same_as_without():
    def program(x64):
        with jax.enable_x64(x64):
            q = jax.ShapeDtypeStruct((B, S, H, D), jnp.float32)
            slopes = jnp.asarray(SLOPES)
            score_mod = lambda score, b, h, q_idx, kv_idx: score % 2.0 + slopes[h] * np.float64(0.5) * (q_idx // 4)  # noqa: E731
            return explain(q, q, q, score_mod, zoo.documents(np.zeros((B, S), int))).program

    assert program(True) == program(False)


def test_the_zoo_takes_lists_and_numpys_numbers():
    q, k, v = qkv()
    bias = np.random.default_rng(3).normal(size=(1, H, S, S))
    for score_mod in (
        zoo.alibi(SLOPES), zoo.alibi(np.asarray(SLOPES), symmetric=True), zoo.head_temperature([1.0, 2.0, 0.5, 1.5]),
        zoo.relative_table(np.ones((H, 5))), zoo.full_bias(bias), zoo.soft_cap(np.float64(3)), zoo.relative_bias(np.float64(0.5)),
    ):  # fmt: skip
        mask_mod = zoo.all_of(zoo.padding([S, 5]), zoo.prefix_lm(np.asarray([3, 4])), zoo.sliding_window(np.int64(5)))
        got = flex_attention(q, k, v, score_mod, mask_mod)
        np.testing.assert_allclose(got, flex_attention(q, k, v, score_mod, mask_mod, backend="xla"), atol=1e-5)


def test_tensors_of_a_graph():
    q, k, v = qkv()
    score_mod = lambda graph, score, tensors: graph.mul(graph.add(score, tensors["bias"]), tensors["factor"])  # noqa: E731
    score_mod_bprop = lambda graph, dscore, tensors: graph.mul(dscore, tensors["factor"])  # noqa: E731
    bias = np.random.default_rng(3).normal(size=(S, S))
    got = fused_attention(
        q, k, v, score_mod=score_mod, score_mod_tensors={"bias": bias, "factor": 0.5},
        score_mod_bprop=score_mod_bprop, score_mod_bprop_tensors={"factor": 0.5},
    )  # fmt: skip
    bias = jnp.asarray(bias)
    np.testing.assert_allclose(got, flex_attention(q, k, v, lambda s, b, h, i, j: (s + bias[i, j]) * 0.5), atol=1e-6)


def test_integers_beyond_int32_are_refused():
    q, k, v = qkv()
    ids = jnp.asarray([[2**33] * S] * B)
    with pytest.raises(scoremod.InvalidArgumentError, match=r"a captured array of shape \(2, 12\): expected integers .* found 8589934592"):
        flex_attention(q, k, v, None, lambda b, h, q_idx, kv_idx: ids[b, q_idx] == 3)
    with pytest.raises(scoremod.InvalidArgumentError, match="mask_mod: .*expected integers"):
        flex_attention(q, k, v, None, lambda b, h, q_idx, kv_idx: kv_idx < np.int64(2**33))


def test_float64_tensors_are_refused_by_name_and_computed_on_xla():
    q, k, v = qkv(np.float64)
    slopes = jnp.asarray(SLOPES)
    score_mod = lambda score, b, h, q_idx, kv_idx: score + slopes[h] * (kv_idx - q_idx)  # noqa: E731
    for arguments in ({}, {"backend": "cpu"}):
        with pytest.raises(scoremod.UnsupportedError, match=r'found float64.*\.astype\(jnp.float32\).*backend="xla"'):
            flex_attention(q, k, v, score_mod, **arguments)

    def results(attention, **options):
        def compute(q, k, v):
            o, lse = attention(q, k, v, score_mod, zoo.causal(), **options)
            return (o**2).sum() + (lse**2).sum(), (o, lse)

        return jax.value_and_grad(compute, argnums=(0, 1, 2), has_aux=True)(q, k, v)

    want = results(dense.attention_and_lse)
    for options in ({"backend": "xla"}, {"fallback": "xla"}):
        got = results(flex_attention, return_lse=True, **options)
        for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            assert x.dtype == y.dtype == np.float64
            np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12)
    with pytest.raises(scoremod.InvalidArgumentError, match="of one dtype"):
        flex_attention(q, k.astype(jnp.float32), v, backend="xla")
