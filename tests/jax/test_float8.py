"""FP8 arrays in flex_attention: against the same call on the descaled values, and calls that are refused. test_float8_gradients.py has their
gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import scoremod
from scoremod.jax import explain, flex_attention

BATCH, HEADS, HEADS_KV, SEQ, DIM = 2, 4, 2, 24, 16
FORMATS = [jnp.float8_e4m3fn, jnp.float8_e5m2]
DESCALES = {"descale_q": 0.05, "descale_k": 0.06, "descale_v": 0.03}


def draw(dtype, seed=0):
    rng = np.random.default_rng(seed)
    shapes = (BATCH, SEQ, HEADS, DIM), (BATCH, SEQ, HEADS_KV, DIM), (BATCH, SEQ, HEADS_KV, DIM)
    return [jnp.asarray(rng.normal(0, 32, shape), jnp.float32).astype(dtype) for shape in shapes]


def numbers(arrays):
    """The descaled values."""
    return [array.astype(jnp.float32) * factor for array, factor in zip(arrays, DESCALES.values())]


def score_mod(score, b, h, q_idx, kv_idx):
    return 4 * jnp.tanh(score / 4)


def mask_mod(b, h, q_idx, kv_idx):
    return kv_idx <= q_idx


@pytest.mark.parametrize("dtype", FORMATS)
def test_it_is_attention_of_the_numbers(dtype):
    arrays = draw(dtype)
    o, lse, largest, amax = flex_attention(
        *arrays, score_mod, mask_mod, **DESCALES, out_dtype=jnp.float32, return_lse=True, return_max_logit=True, return_amax_o=True
    )
    expected = flex_attention(*numbers(arrays), score_mod, mask_mod, return_lse=True, return_max_logit=True)
    for found, of_numbers in zip((o, lse, largest), expected, strict=True):
        np.testing.assert_allclose(found, of_numbers, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(amax, jnp.abs(o).max(), rtol=1e-6)
    assert flex_attention(*arrays, **DESCALES).dtype == jnp.bfloat16


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("out_dtype", FORMATS)
def test_the_output_is_scaled_rounded_and_saturated(dtype, out_dtype):
    """With one key, o is v: it is compared bit for bit."""
    q, k, v = (array[:, :1] for array in draw(dtype))
    largest = float(jnp.finfo(out_dtype).max)
    real = np.repeat(np.asarray(numbers([q, k, v])[2], np.float64), HEADS // HEADS_KV, axis=2)
    for scale in (1.0, 37.5, 1e6):
        o, amax = flex_attention(q, k, v, descale_v=jnp.float32(DESCALES["descale_v"]), scale_o=scale, out_dtype=out_dtype, return_amax_o=True)
        unscaled = np.asarray(flex_attention(q, k, v, descale_v=DESCALES["descale_v"], out_dtype=jnp.float32))
        np.testing.assert_allclose(unscaled, real, rtol=1e-6)
        expected = np.clip(unscaled.astype(np.float64) * scale, -largest, largest).astype(jnp.dtype(out_dtype))
        assert o.dtype == out_dtype
        np.testing.assert_array_equal(np.asarray(o).astype(np.float32), expected.astype(np.float32))
        np.testing.assert_allclose(amax, np.abs(unscaled).max(), rtol=1e-6)


def test_factors_are_arguments_of_a_jitted_function():
    arrays = draw(FORMATS[0])
    traces = []

    @jax.jit
    def attend(q, k, v, descale_q):
        traces.append(None)
        return flex_attention(q, k, v, descale_q=descale_q, descale_k=0.06, descale_v=0.03)

    for factor in (0.02, 0.05):
        expected = flex_attention(*arrays, descale_q=factor, descale_k=0.06, descale_v=0.03)
        np.testing.assert_array_equal(attend(*arrays, jnp.float32(factor)), expected)
    assert len(traces) == 1
    assert not np.array_equal(attend(*arrays, jnp.float32(0.02)), attend(*arrays, jnp.float32(0.05)))


def test_captured_arrays_have_gradients():
    arrays = draw(FORMATS[0])
    bias = jnp.linspace(-1, 1, HEADS)

    def loss(bias, q, k, v, **options):
        return flex_attention(q, k, v, lambda s, b, h, q_idx, kv_idx: s + bias[h] * kv_idx, mask_mod, **options).sum()

    found = jax.grad(loss)(bias, *arrays, **DESCALES, out_dtype=jnp.float32)
    np.testing.assert_allclose(found, jax.grad(loss)(bias, *numbers(arrays)), rtol=1e-4, atol=1e-5)


def test_shards_agree():
    arrays = draw(FORMATS[1])
    expected = flex_attention(*arrays, score_mod, **DESCALES, return_amax_o=True)
    mesh = Mesh(np.asarray(jax.devices()[:2]), ("x",))
    for spec in (PartitionSpec("x"), PartitionSpec(None, None, "x")):
        sharded = [jax.device_put(array, NamedSharding(mesh, spec)) for array in arrays]
        found = jax.jit(lambda q, k, v: flex_attention(q, k, v, score_mod, **DESCALES, return_amax_o=True))(*sharded)
        for each, of_whole in zip(found, expected, strict=True):
            np.testing.assert_array_equal(each, of_whole)


def test_mapped_calls_share_their_factors():
    arrays = [jnp.stack([array, array[::-1]]) for array in draw(FORMATS[0])]
    found = jax.vmap(lambda q, k, v: flex_attention(q, k, v, score_mod, **DESCALES))(*arrays)
    for i in range(2):
        np.testing.assert_array_equal(found[i], flex_attention(*(array[i] for array in arrays), score_mod, **DESCALES))
    with pytest.raises(scoremod.UnsupportedError, match="expected the same in all calls of a jax.vmap"):
        jax.vmap(lambda q, k, v, factor: flex_attention(q, k, v, descale_q=factor))(*arrays, jnp.ones(2))
    with pytest.raises(scoremod.UnsupportedError, match="return_amax_o: expected no jax.vmap"):
        jax.vmap(lambda q, k, v: flex_attention(q, k, v, return_amax_o=True))(*arrays)


def test_with_lengths_dropout_and_sequences():
    arrays = draw(FORMATS[0])
    options = dict(lengths=jnp.asarray([5, 20]), dropout_rate=0.25, dropout_key=jax.random.key(3))
    found = flex_attention(*arrays, score_mod, **DESCALES, **options, out_dtype=jnp.float32)
    np.testing.assert_allclose(found, flex_attention(*numbers(arrays), score_mod, **options), rtol=2e-5, atol=2e-6)
    tokens = [array.reshape(BATCH * SEQ, -1, DIM) for array in arrays]
    offsets = jnp.asarray([0, 11, BATCH * SEQ])
    found = flex_attention(*tokens, **DESCALES, q_offsets=offsets, layout="THD", out_dtype=jnp.float32)
    np.testing.assert_allclose(found, flex_attention(*numbers(tokens), q_offsets=offsets, layout="THD"), rtol=2e-5, atol=2e-6)


def test_a_sink_is_applied_to_an_output_of_more_bits():
    arrays = draw(FORMATS[0])
    sink = jnp.linspace(-1, 1, HEADS)
    found = flex_attention(*arrays, **DESCALES, sink=sink, out_dtype=jnp.float32)
    np.testing.assert_allclose(found, flex_attention(*numbers(arrays), sink=sink), rtol=2e-5, atol=2e-6)
    with pytest.raises(scoremod.UnsupportedError, match="sink: expected no scale_o and no return_amax_o beside it"):
        flex_attention(*arrays, sink=sink, return_amax_o=True)


def test_bad_arguments_are_named():
    q, k, v = draw(FORMATS[0])
    real = numbers([q, k, v])
    refused = [
        (lambda: flex_attention(*real, descale_k=1.0), "descale_k: expected none beside a query of float32"),
        (lambda: flex_attention(*real, return_amax_o=True), "return_amax_o: expected none beside a query of float32"),
        (lambda: flex_attention(q, k, v, scale_o=2.0), "scale_o: expected one with an FP8 out_dtype and none with another, found one with bfloat16"),
        (lambda: flex_attention(q, k, v, out_dtype=FORMATS[0]), "scale_o: expected one with an FP8 out_dtype and none with another, found none"),
        (lambda: flex_attention(q, k, v, out_dtype=jnp.int8), "out_dtype: expected one of"),
        (lambda: flex_attention(q, k, v, descale_q=0), "descale_q: expected a positive finite number, found 0"),
        (lambda: flex_attention(q, k, v, descale_q=float("nan")), "descale_q: expected a positive finite number"),
        (lambda: flex_attention(q, k, v, descale_v=jnp.ones(3)), "descale_v: expected a positive number or floats of one element"),
        (lambda: flex_attention(q, k, real[2]), "expected query, key and value of one dtype"),
    ]
    for call, message in refused:
        with pytest.raises(scoremod.InvalidArgumentError, match=message):
            call()
    with pytest.raises(scoremod.UnsupportedError, match="expected query, key and value of 16 bits or more on XLA"):
        flex_attention(q, k, v, backend="xla")


def test_it_is_explained():
    text = str(explain(*draw(FORMATS[0]), score_mod))
    assert "e4m3" in text


@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
def test_a_query_of_few_dimensions_is_refused(shape):
    with pytest.raises(scoremod.InvalidArgumentError, match="query: expected 4 dimensions in the order BSHD"):
        flex_attention(jnp.zeros(shape, jnp.float8_e4m3fn), *(jnp.zeros((1, 0, 2, 8), jnp.float8_e4m3fn) for _ in range(2)))
