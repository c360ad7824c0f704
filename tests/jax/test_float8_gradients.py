"""Gradients of FP8 arrays: those of the same call on the descaled values, by float32, in each array's dtype and times its scale."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from test_float8 import BATCH, DESCALES, FORMATS, HEADS, draw, mask_mod, numbers, score_mod

import scoremod
from scoremod.jax import flex_attention

SCALES = {"scale_dq": 40.0, "scale_dk": 30.0, "scale_dv": 25.0}
WEIGHTS = jnp.asarray(np.random.default_rng(9).normal(size=(BATCH, 24, HEADS, 16)), jnp.float32)


def loss_of(attend):
    return lambda *arrays: (attend(*arrays).astype(jnp.float32) * WEIGHTS).sum()


def gradients(arrays, **options):
    """The gradients of a loss with respect to query, key and value."""
    return jax.grad(loss_of(functools.partial(flex_attention, score_mod=score_mod, mask_mod=mask_mod, **options)), argnums=(0, 1, 2))(*arrays)


def excess(found, expected):
    """How far the gradients are from what their dtype and bfloat16 before it can say of the expected ones, as a share of that: at most 1 is right."""
    dtype = jnp.finfo(found.dtype)
    expected = np.asarray(expected, np.float64)
    expected = np.clip(expected, float(dtype.min), float(dtype.max))
    allowed = (float(dtype.eps) / 2 + 2.0**-8) * np.abs(expected) + float(dtype.smallest_subnormal) / 2 + 1e-5 * np.abs(expected).max()
    return (np.abs(np.asarray(found.astype(jnp.float32), np.float64) - expected) / allowed).max()


@pytest.mark.parametrize("dtype", FORMATS)
def test_they_are_those_of_the_numbers(dtype):
    arrays = draw(dtype)
    found = gradients(arrays, **DESCALES, **SCALES, out_dtype=jnp.float32)
    of_numbers = gradients(numbers(arrays))
    for each, expected, scale in zip(found, of_numbers, SCALES.values(), strict=True):
        assert each.dtype == dtype
        assert excess(each, expected * scale) <= 1
    # Negative controls: another descale is another function, and what the scale isn't leaves its mark.
    for name in DESCALES:
        wrong = gradients(arrays, **{**DESCALES, name: 1.25 * DESCALES[name]}, **SCALES, out_dtype=jnp.float32)
        assert max(excess(each, expected * scale) for each, expected, scale in zip(wrong, of_numbers, SCALES.values())) > 2
    for number, name in enumerate(SCALES):
        wrong = gradients(arrays, **DESCALES, **{**SCALES, name: 1.25 * SCALES[name]}, out_dtype=jnp.float32)
        assert excess(wrong[number], of_numbers[number] * SCALES[name]) > 2


def test_without_scales_they_are_derivatives_of_what_the_arrays_hold():
    arrays = draw(FORMATS[1])
    found = gradients(arrays, **DESCALES, out_dtype=jnp.float32)
    for each, expected, descale in zip(found, gradients(numbers(arrays)), DESCALES.values(), strict=True):
        assert excess(each, expected * descale) <= 1


@pytest.mark.parametrize("dtype", FORMATS)
def test_they_saturate(dtype):
    found = gradients(draw(dtype), **DESCALES, scale_dv=1e7, out_dtype=jnp.float32)[2].astype(jnp.float32)
    assert jnp.isfinite(found).all() and float(jnp.abs(found).max()) == float(jnp.finfo(dtype).max)


@pytest.mark.parametrize("dtype", FORMATS)
def test_an_output_of_eight_bits_has_a_gradient_of_eight(dtype):
    """With its own factor, and by default with that of the output."""
    arrays, upstream = draw(dtype), (WEIGHTS * 16).astype(dtype)
    attend = functools.partial(flex_attention, score_mod=score_mod, mask_mod=mask_mod)
    expected = jax.vjp(attend, *numbers(arrays))[1](upstream.astype(jnp.float32))
    for given, factor in (({}, 24.0), ({"descale_d_o": 0.0625}, 0.0625)):
        scales = {name: scale / 16 / factor for name, scale in SCALES.items()}
        pull_back = jax.vjp(functools.partial(attend, **DESCALES, **scales, scale_o=24.0, out_dtype=dtype, **given), *arrays)[1]
        for each, of_numbers, scale in zip(pull_back(upstream), expected, scales.values(), strict=True):
            # The deltas are of the output as it was stored, whose rounding scores' gradients are as far off by.
            assert each.dtype == dtype
            np.testing.assert_allclose(each.astype(jnp.float32), of_numbers * scale * factor, atol=0.2 * float(jnp.abs(of_numbers * scale * factor).max()))
            assert excess(each, 1.5 * of_numbers * scale * factor) > 2
        assert excess(pull_back(upstream)[2], expected[2] * scales["scale_dv"] * factor) <= 1


def test_captured_arrays_and_the_sink_and_the_lse_have_gradients():
    arrays = draw(FORMATS[0])
    bias, sink = jnp.linspace(-1, 1, HEADS), jnp.linspace(-2, 2, HEADS)

    def loss(bias, sink, q, k, v, **options):
        o, lse = flex_attention(q, k, v, lambda s, b, h, q_idx, kv_idx: s + bias[h] * kv_idx, mask_mod, sink=sink, return_lse=True, **options)
        return (o * WEIGHTS).sum() + (lse * WEIGHTS[..., 0].swapaxes(1, 2)).sum()

    found = jax.grad(loss, argnums=range(5))(bias, sink, *arrays, **DESCALES, **SCALES, out_dtype=jnp.float32)
    expected = jax.grad(loss, argnums=range(5))(bias, sink, *numbers(arrays))
    for each, of_numbers in zip(found[:2], expected[:2], strict=True):
        np.testing.assert_allclose(each, of_numbers, rtol=1e-4, atol=1e-4)
    for each, of_numbers, scale in zip(found[2:], expected[2:], SCALES.values(), strict=True):
        assert excess(each, of_numbers * scale) <= 1


def test_an_lse_has_none_beside_an_output_of_eight_bits():
    q, k, v = draw(FORMATS[0])
    with pytest.raises(scoremod.UnsupportedError, match="return_lse: cannot differentiate the LSE of a call with an FP8 output"):
        jax.grad(lambda q: flex_attention(q, k, v, return_lse=True, scale_o=8.0, out_dtype=FORMATS[0])[1].sum())(q)


def test_shards_mapped_calls_and_jit_agree():
    arrays = draw(FORMATS[1])
    attend = functools.partial(gradients, **DESCALES, **SCALES)
    expected = attend(arrays)
    mesh = Mesh(np.asarray(jax.devices()[:2]), ("x",))
    sharded = [jax.device_put(array, NamedSharding(mesh, PartitionSpec(None, None, "x"))) for array in arrays]
    two = [jnp.stack([array, array]) for array in arrays]
    mapped = jax.vmap(lambda *arrays: attend(arrays))(*two)
    for found in (jax.jit(attend)(sharded), [array[0] for array in mapped], [array[1] for array in mapped]):
        for each, of_whole in zip(found, expected, strict=True):
            np.testing.assert_array_equal(each, of_whole)


def test_bad_arguments_are_named():
    q, k, v = draw(FORMATS[0])
    refused = [
        (lambda: flex_attention(*numbers([q, k, v]), scale_dq=1.0), "scale_dq: expected none beside a query of float32"),
        (lambda: flex_attention(q, k, v, scale_dk=-1.0), "scale_dk: expected a positive finite number, found -1.0"),
        (lambda: flex_attention(q, k, v, descale_d_o=2.0), "descale_d_o: expected none unless out_dtype is FP8, found one with bfloat16"),
    ]
    for call, message in refused:
        with pytest.raises(scoremod.InvalidArgumentError, match=message):
            call()
