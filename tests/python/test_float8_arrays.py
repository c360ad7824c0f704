"""FP8 tensors through the C interface, against NumPy and the conversions of ml_dtypes."""

import ml_dtypes
import numpy as np
import pytest

import scoremod

FORMATS = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
LARGEST = {"e4m3": 448, "e5m2": 57344}


def factors(**given):
    return {name: np.float32(value) for name, value in given.items()}


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("dtype", FORMATS)
def test_every_code_is_read_and_rounded_as_ml_dtypes_does(fresh_rng, dtype, backend):
    """With a single key, o is v: each number of the format, times factors that leave it between two others."""
    codes = np.arange(256, dtype=np.uint8).view(FORMATS[dtype])
    v = codes[np.isfinite(codes.astype(np.float32))].reshape(1, 1, 1, -1)
    q = np.zeros((1, 1, 1, 8), FORMATS[dtype])
    problem = {"batch": 1, "heads_q": 1, "seq_q": 1, "dim_qk": 8, "dim_v": v.size, "dtype": dtype, "amax_o": True}
    attention = scoremod.Attention(problem, backend=backend)
    for scale in fresh_rng.uniform(0.1, 30, 50).astype(np.float32):
        operands = factors(descale_q=1, descale_k=1, descale_v=0.5, scale_o=scale)
        o, amax = attention.forward(q, q, v, operands, return_amax_o=True)
        assert o.dtype == FORMATS[dtype]
        real = 0.5 * v.astype(np.float64)
        expected = np.clip(real * np.float64(scale), -LARGEST[dtype], LARGEST[dtype]).astype(FORMATS[dtype])
        np.testing.assert_array_equal(o.astype(np.float32), expected.astype(np.float32), err_msg=str(scale))
        assert amax == np.abs(real).max()


def test_gradients_are_those_of_the_numbers(fresh_rng):
    rng = fresh_rng
    shapes = {"q": (2, 5, 2, 8), "k": (2, 7, 2, 8), "v": (2, 7, 2, 8), "d_o": (2, 5, 2, 8)}
    stored = {name: rng.normal(0, 20, shape).astype(FORMATS["e4m3"]) for name, shape in shapes.items()}
    descales = factors(descale_q=0.05, descale_k=0.07, descale_v=0.02, descale_d_o=0.03)
    problem = {"batch": 2, "heads_q": 2, "seq_q": 5, "seq_kv": 7, "dim_qk": 8, "backward": True}
    float8 = scoremod.Attention({**problem, "dtype": "e4m3", "dtype_o": "f32", "dtype_d_o": "e4m3", "dtype_gradients": "f32"})
    plain = scoremod.Attention(problem)
    real = {name: array.astype(np.float32) * descales[f"descale_{name}"] for name, array in stored.items()}
    forward_factors = {name: value for name, value in descales.items() if name != "descale_d_o"}
    o, lse = float8.forward(stored["q"], stored["k"], stored["v"], forward_factors, return_lse=True)
    plain_o, plain_lse = plain.forward(real["q"], real["k"], real["v"], return_lse=True)
    np.testing.assert_allclose(o, plain_o, rtol=1e-5, atol=1e-6)
    found = float8.backward(stored["q"], stored["k"], stored["v"], o, lse, stored["d_o"], descales)
    expected = plain.backward(real["q"], real["k"], real["v"], plain_o, plain_lse, real["d_o"])
    for name in ("dq", "dk", "dv"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-4, atol=1e-6)
    assert not found.d_operands


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("dtype_gradients", ["f32", "bf16"])
@pytest.mark.parametrize("keys", [7, 700])
def test_largest_magnitudes_are_those_of_gradients_before_they_are_rounded(fresh_rng, keys, dtype_gradients, backend):
    problem = {"batch": 2, "heads_q": 4, "heads_kv": 2, "seq_q": 5, "seq_kv": keys, "dim_qk": 8, "dtype": "e4m3", "dtype_o": "f32", "backward": True}
    problem |= {"program": "value = 4.0 * tanh(score / 4.0); keep = kv_idx <= q_idx + 3"}
    shapes = {"q": (2, 5, 4, 8), "k": (2, keys, 2, 8), "v": (2, keys, 2, 8)}
    q, k, v = (fresh_rng.normal(0, 20, shape).astype(FORMATS["e4m3"]) for shape in shapes.values())
    d_o = fresh_rng.normal(0, 1, (2, 5, 4, 8)).astype(np.float32)
    descales = factors(descale_q=0.05, descale_k=0.07, descale_v=0.02)
    attention = scoremod.Attention({**problem, "dtype_gradients": dtype_gradients, "amax_gradients": True}, backend=backend)
    o, lse = attention.forward(q, k, v, descales, return_lse=True)
    gradients, amax = attention.backward(q, k, v, o, lse, d_o, descales, return_amax_gradients=True)
    exact = scoremod.Attention({**problem, "dtype_gradients": "f32"}, backend=backend).backward(q, k, v, o, lse, d_o, descales)
    for largest, rounded, gradient in zip(amax, gradients[:3], exact[:3]):
        assert largest.shape == () and largest.dtype == np.float32
        np.testing.assert_allclose(largest, np.abs(gradient).max(), rtol=1e-6)
        assert largest.astype(rounded.dtype) == np.abs(rounded).max()
    unasked = attention.backward(q, k, v, o, lse, d_o, descales)
    assert isinstance(unasked, scoremod.Gradients) and np.array_equal(unasked.dq, gradients.dq)


def test_largest_magnitudes_of_gradients_keep_nan_and_come_from_queues(fresh_rng):
    problem = {"batch": 1, "heads_q": 1, "seq_q": 3, "dim_qk": 8, "dtype": "e4m3", "dtype_o": "f32", "backward": True, "amax_gradients": True}
    attention = scoremod.Attention(problem)
    q = fresh_rng.normal(0, 1, (1, 3, 1, 8)).astype(FORMATS["e4m3"])
    descales = factors(descale_q=1, descale_k=1, descale_v=1)
    o, lse = attention.forward(q, q, q, descales, return_lse=True)
    d_o = np.ones_like(o)
    d_o[0, 1, 0, 2] = np.nan
    with scoremod.RequestQueue() as queue:
        gradients, amax = queue.backward(attention, q, q, q, o, lse, d_o, descales, return_amax_gradients=True).result()
    assert np.isnan(amax).all() and np.isnan(gradients.dv.astype(np.float32)).any()


def test_largest_magnitudes_of_no_gradients_are_0():
    sizes = {"batch": 0, "heads_q": 1, "seq_q": 3, "dim_qk": 8}
    attention = scoremod.Attention({**sizes, "dtype": "e4m3", "dtype_o": "f32", "backward": True, "amax_gradients": True})
    q = np.zeros((0, 3, 1, 8), FORMATS["e4m3"])
    descales = factors(descale_q=1, descale_k=1, descale_v=1)
    o, lse = attention.forward(q, q, q, descales, return_lse=True)
    assert attention.backward(q, q, q, o, lse, o, descales, return_amax_gradients=True)[1] == (0, 0, 0)


def test_codes_may_come_as_bytes(fresh_rng):
    problem = {"batch": 1, "heads_q": 1, "seq_q": 3, "dim_qk": 8, "dtype": "e5m2", "backward": True}
    attention = scoremod.Attention(problem)
    q = fresh_rng.normal(0, 2, (1, 3, 1, 8)).astype(FORMATS["e5m2"])
    operands = factors(descale_q=1, descale_k=1, descale_v=1, scale_o=4, descale_d_o=1)
    by_bits = attention.forward(*[q.view(np.uint8)] * 3, operands, return_lse=True)
    by_dtype = attention.forward(q, q, q, operands, return_lse=True)
    assert by_bits[0].dtype == np.uint8
    np.testing.assert_array_equal(by_bits[0], by_dtype[0].view(np.uint8))
    gradients = attention.backward(*[q.view(np.uint8)] * 3, *by_bits, q.view(np.uint8), operands)
    assert gradients.dq.dtype == np.uint16
    assert attention.backward(q, q, q, *by_dtype, q, operands).dq.dtype == ml_dtypes.bfloat16


def test_what_is_missing_or_not_asked_for_is_refused():
    problem = {"batch": 1, "heads_q": 1, "seq_q": 3, "dim_qk": 8, "dtype": "e4m3"}
    attention = scoremod.Attention(problem)
    q = np.zeros((1, 3, 1, 8), FORMATS["e4m3"])
    operands = factors(descale_q=1, descale_k=1, descale_v=1, scale_o=1)
    with pytest.raises(scoremod.InvalidArgumentError, match="expected an array for 'descale_v'"):
        attention.forward(q, q, q, {name: value for name, value in operands.items() if name != "descale_v"})
    with pytest.raises(scoremod.InvalidArgumentError, match="descale_d_o"):
        attention.forward(q, q, q, {**operands, **factors(descale_d_o=1)})
    with pytest.raises(scoremod.InvalidArgumentError, match="'descale_q': expected a positive finite factor, found 0"):
        attention.forward(q, q, q, {**operands, **factors(descale_q=0)})
    with pytest.raises(scoremod.InvalidArgumentError, match="return_amax_o: expected a problem"):
        attention.forward(q, q, q, operands, return_amax_o=True)
    backward = scoremod.Attention({**problem, "dtype_o": "f32", "backward": True})
    o, lse = backward.forward(q, q, q, factors(descale_q=1, descale_k=1, descale_v=1), return_lse=True)
    with pytest.raises(scoremod.InvalidArgumentError, match="return_amax_gradients: expected a problem"):
        backward.backward(q, q, q, o, lse, o, factors(descale_q=1, descale_k=1, descale_v=1), return_amax_gradients=True)
    with pytest.raises(scoremod.InvalidArgumentError, match="amax_gradients: expected false in a problem without backward"):
        scoremod.Attention({**problem, "amax_gradients": True})
    with pytest.raises(scoremod.InvalidArgumentError, match="amax_o: expected false in a problem whose dtype is f32"):
        scoremod.Attention({**problem, "dtype": "f32", "amax_o": True})
    with pytest.raises(scoremod.InvalidArgumentError, match="q: expected an array of 16 bits or more"):
        scoremod.attention(q, q, q)
    with pytest.raises(scoremod.InvalidArgumentError, match="q: expected dtype float8_e4m3fn or uint8"):
        attention.forward(q.astype(FORMATS["e5m2"]), q, q, operands)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("dtype_kv", FORMATS)
def test_caches_are_read_under_wider_queries(fresh_rng, dtype_kv, backend):
    rng = fresh_rng
    q = rng.normal(0, 1, (2, 5, 4, 8)).astype(np.float32)
    k, v = (rng.normal(0, 20, (2, 7, 2, 8)).astype(FORMATS[dtype_kv]) for _ in range(2))
    of_heads = rng.uniform(0.01, 0.1, 2).astype(np.float32)
    problem = {"batch": 2, "heads_q": 4, "heads_kv": 2, "seq_q": 5, "seq_kv": 7, "dim_qk": 8}
    cache = scoremod.Attention({**problem, "dtype_kv": dtype_kv, "operands": [{"name": "descale_v", "shape": [2]}]}, backend=backend)
    o = cache.forward(q, k, v, {"descale_k": np.float32(0.05), "descale_v": of_heads})
    values = k.astype(np.float32) * np.float32(0.05), v.astype(np.float32) * of_heads[:, None]
    np.testing.assert_allclose(o, scoremod.Attention(problem, backend=backend).forward(q, *values), rtol=1e-5, atol=1e-6)
    with pytest.raises(scoremod.InvalidArgumentError, match="k: expected dtype"):
        cache.forward(q, *values, {"descale_k": np.float32(0.05), "descale_v": of_heads})
