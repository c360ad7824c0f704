"""The masks, windows, biases, sinks and dropout of the Flax modules, against the dense computation with the mask written out, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scoremod
from scoremod.jax import flex_attention
from scoremod.jax.linen import DotProductAttention, MultiHeadAttention, SequenceDescriptor

B, SQ, SKV, H, D = 2, 6, 9, 4, 8
I, J = np.arange(SQ)[:, None], np.arange(SKV)  # noqa: E741
LENGTHS = np.array([6, 4]), np.array([7, 9])


def draw():
    rng = np.random.default_rng(1)
    return [jnp.asarray(rng.standard_normal((B, s, H, D)), jnp.float32) for s in (SQ, SKV, SKV)]


def dense(keep, bias=0.0, sink=None):
    """keep: [batch or 1, q, kv]."""
    q, k, v = draw()
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(D) + bias
    terms = jnp.where(np.asarray(keep)[:, None], jnp.exp(scores), 0)
    sums = terms.sum(-1, keepdims=True) + (0 if sink is None else np.exp(sink)[:, None, None])
    return jnp.einsum("bhqk,bkhd->bqhd", terms / jnp.where(sums > 0, sums, 1), v)


def within(lengths):
    return (I < lengths[0][:, None, None]) & (J < lengths[1][:, None, None])


SHIFT = (LENGTHS[1] - LENGTHS[0])[:, None, None]


@pytest.mark.parametrize(
    "mask_type, window, lengths, keep",
    [
        ("no_mask", None, None, np.ones((1, SQ, SKV), bool)),
        ("causal", None, None, (J <= I)[None]),
        ("causal_bottom_right", None, None, (J <= I + SKV - SQ)[None]),
        ("no_mask", (2, 1), None, ((J >= I - 2) & (J <= I + 1))[None]),
        ("no_mask", (-1, 1), None, (J <= I + 1)[None]),
        ("causal", (2, -1), None, ((J >= I - 2) & (J <= I))[None]),
        ("causal", (0, 3), None, (J == I)[None]),
        ("padding", None, LENGTHS, within(LENGTHS)),
        ("causal_padding", None, LENGTHS, within(LENGTHS) & (J <= I)),
        ("padding_causal_bottom_right", None, LENGTHS, within(LENGTHS) & (J <= I + SHIFT)),
        ("bottom_right_causal_padding", (1, -1), LENGTHS, within(LENGTHS) & (J <= I + SHIFT) & (J >= I + SHIFT - 1)),
    ],
)
def test_masks_by_name(mask_type, window, lengths, keep):
    descriptor = None if lengths is None else SequenceDescriptor.from_seqlens(lengths)
    module = DotProductAttention(attn_mask_type=mask_type, window_size=window)
    o = module.apply({}, *draw(), sequence_descriptor=descriptor)
    np.testing.assert_allclose(o, dense(keep), rtol=1e-4, atol=1e-5)
    # A mask that is one off is another.
    assert (mask_type == "no_mask" and window is None) or np.abs(o - dense(keep & (J != 0))).max() > 1e-3


def test_segments_and_positions():
    ids_q, ids_kv = np.array([[1, 1, 1, 2, 2, 0]] * B), np.array([[1, 1, 2, 2, 2, 2, 0, 0, 3]] * B)
    positions_q, positions_kv = np.array([[0, 1, 2, 0, 1, 0]] * B), np.array([[0, 1, 0, 1, 2, 3, 0, 1, 0]] * B)
    same = (ids_q[:, :, None] == ids_kv[:, None]) & (ids_q[:, :, None] != 0)
    keep = same & (positions_kv[:, None] <= positions_q[:, :, None])
    descriptor = SequenceDescriptor.from_segment_ids_and_pos((ids_q, ids_kv), (positions_q, positions_kv))
    o = DotProductAttention(attn_mask_type="padding_causal").apply({}, *draw(), sequence_descriptor=descriptor)
    np.testing.assert_allclose(o, dense(keep), rtol=1e-4, atol=1e-5)
    assert not np.asarray(o)[:, 5].any()
    without = DotProductAttention(attn_mask_type="padding").apply({}, *draw(), sequence_descriptor=descriptor._replace(segment_positions=None))
    np.testing.assert_allclose(without, dense(same), rtol=1e-4, atol=1e-5)


def test_softmax_types_and_biases():
    keep = (J <= I)[None]
    module = DotProductAttention(attn_mask_type="causal", softmax_type="off_by_one")
    np.testing.assert_allclose(module.apply({}, *draw()), dense(keep, sink=np.zeros(H)), rtol=1e-4, atol=1e-5)
    learnable = DotProductAttention(attn_mask_type="causal", softmax_type="learnable")
    params = learnable.init(jax.random.key(0), *draw())
    assert params["params"]["softmax_offset"].shape == (H,)
    sink = jnp.asarray([0.5, -1.0, 2.0, 0.0])
    given = {"params": {"softmax_offset": sink}}
    np.testing.assert_allclose(learnable.apply(given, *draw()), dense(keep, sink=np.asarray(sink)), rtol=1e-4, atol=1e-5)
    gradient = jax.grad(lambda p: learnable.apply(p, *draw()).sum())(given)["params"]["softmax_offset"]
    wanted = jax.grad(lambda s: _dense_with(s, keep).sum())(sink)
    np.testing.assert_allclose(gradient, wanted, rtol=1e-3, atol=1e-5)
    bias = jnp.asarray(np.random.default_rng(5).standard_normal((1, H, 1, SKV)), jnp.float32)
    for bias_type, factor in (("post_scale_bias", 1), ("pre_scale_bias", 1 / np.sqrt(D))):
        o = DotProductAttention(attn_mask_type="causal", bias_type=bias_type).apply({}, *draw(), bias=bias)
        np.testing.assert_allclose(o, dense(keep, bias=factor * bias), rtol=1e-4, atol=1e-5)


def _dense_with(sink, keep):
    q, k, v = draw()
    terms = jnp.where(np.asarray(keep)[:, None], jnp.exp(jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(D)), 0)
    sums = terms.sum(-1, keepdims=True) + jnp.exp(sink)[:, None, None]
    return jnp.einsum("bhqk,bkhd->bqhd", terms / sums, v)


def test_dropout_follows_flax():
    module = DotProductAttention(attention_dropout=0.5, backend="cpu")
    arrays = draw()
    plain = flex_attention(*arrays)
    np.testing.assert_array_equal(module.apply({}, *arrays), plain)
    rngs = {"dropout": jax.random.key(1)}
    dropped = module.apply({}, *arrays, deterministic=False, rngs=rngs)
    assert np.abs(dropped - plain).max() > 0.05
    np.testing.assert_array_equal(module.apply({}, *arrays, deterministic=False, rngs=rngs), dropped)
    assert np.abs(module.apply({}, *arrays, deterministic=False, rngs={"dropout": jax.random.key(2)}) - dropped).max() > 0.05


def test_multi_head_attention_passes_them_on():
    x = jnp.asarray(np.random.default_rng(2).standard_normal((B, SQ, H * D)), jnp.float32)
    module = MultiHeadAttention(num_heads=H, attn_mask_type="padding_causal", softmax_type="learnable", window_size=(3, -1))
    descriptor = SequenceDescriptor.from_seqlens(np.array([6, 4]))
    params = module.init(jax.random.key(0), x, sequence_descriptor=descriptor)
    assert params["params"]["DotProductAttention_0"]["softmax_offset"].shape == (H,)
    o = module.apply(params, x, sequence_descriptor=descriptor)
    changed = module.apply(params, x.at[:, 5].set(7.0), sequence_descriptor=descriptor)
    np.testing.assert_array_equal(o[:, :5], changed[:, :5])  # causal: nobody before sees the last
    beyond = module.apply(params, x.at[1, 4:].set(7.0), sequence_descriptor=descriptor)
    np.testing.assert_array_equal(o[1, :4], beyond[1, :4])


@pytest.mark.parametrize(
    "fields, arguments, message",
    [
        (dict(attn_mask_type="casual"), {}, "attn_mask_type: expected .*found 'casual'"),
        (dict(attn_mask_type="padding_bottom_right"), {}, "attn_mask_type: expected"),
        (dict(attn_mask_type="padding"), {}, "sequence_descriptor: expected lengths or segment ids"),
        ({}, dict(sequence_descriptor=SequenceDescriptor.from_seqlens(LENGTHS)), "attn_mask_type: expected a type with padding"),
        (dict(window_size=3), {}, "window_size: expected \\(left, right\\)"),
        (dict(window_size=(1, -2)), {}, "window_size: expected"),
        (dict(softmax_type="plain"), {}, "softmax_type: expected"),
        (dict(bias_type="post_scale_bias"), {}, "bias: expected an array"),
        ({}, dict(bias=jnp.ones((1, 1, 1, 1))), "bias: expected none"),
        (dict(bias_type="alibi"), {}, "bias_type: expected one of"),
        (
            dict(attn_mask_type="padding"),
            dict(sequence_descriptor=SequenceDescriptor(segment_positions=(J, J))),
            "sequence_descriptor: expected segment_ids beside",
        ),
    ],
)
def test_mistakes(fields, arguments, message):
    with pytest.raises(scoremod.InvalidArgumentError, match=message):
        DotProductAttention(**fields).apply({}, *draw(), **arguments)
