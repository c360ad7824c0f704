"""Several sequences in a row by lengths and offsets, and masks at the ends of segments, against dense attention in float64 with masks that loops make."""

import os

import dense_reference as dense
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scoremod
from scoremod.jax import SequenceDescriptor, fused_attn
from scoremod.jax.linen import DotProductAttention
from scoremod.jax.segments import before_end, ids_and_positions

SEED = int(os.environ.get("SCOREMOD_TEST_SEED", 0)) or int.from_bytes(os.urandom(4), "little")
B, S, H, D = 2, 14, 2, 8


def draw(rng, size, sequences):
    """(lengths, offsets) [B, sequences] and [B, sequences + 1], of sequences with gaps between them, of which some are none."""
    lengths, offsets = np.full((B, sequences), -1, np.int32), np.full((B, sequences + 1), -1, np.int32)
    for b in range(B):
        cuts = np.sort(rng.integers(0, size + 1, 2 * sequences))
        for i in range(sequences):
            lengths[b, i], offsets[b, i] = cuts[2 * i + 1] - cuts[2 * i], cuts[2 * i]
        if rng.random() < 0.5:
            i = rng.integers(sequences)
            lengths[b, i] = offsets[b, i] = -1
    return lengths, offsets


def kept(queries, keys, size_q, size_kv, causal=False, bottom_right=False, window=None):
    """The mask [B, size_q, size_kv] of sequences that are (lengths, offsets), by loops over all elements."""
    keep = np.zeros((B, size_q, size_kv), bool)
    for b, i in np.ndindex(B, queries[0].shape[1]):
        count_q, count_kv = queries[0][b, i], keys[0][b, i]
        for q, k in np.ndindex(max(count_q, 0), max(count_kv, 0)):
            position = q + (count_kv - count_q if bottom_right else 0)
            right = k <= position if causal else window is None or window[1] < 0 or k - position <= window[1]
            left = window is None or window[0] < 0 or position - k <= window[0]
            keep[b, queries[1][b, i] + q, keys[1][b, i] + k] = right and left
    return keep


@jax.jit
def plainly(keep, *arrays):
    return dense.attention(*arrays, mask_mod=lambda b, h, i, j: keep[b, i, j])


def assert_is_dense(found, arrays, keep):
    dense.assert_close(found, plainly(keep, *arrays), dense.in_float64(plainly, keep, *arrays))


def arrays_of(rng, size_q, size_kv):
    return [jnp.asarray(rng.standard_normal((B, size, H, D)), jnp.float32) for size in (size_q, size_kv, size_kv)]


def test_lengths_and_offsets():
    rng = np.random.default_rng(SEED)
    print(f"SCOREMOD_TEST_SEED={SEED}")
    size_kv, sequences = 11, 3
    queries, keys = draw(rng, S, sequences), draw(rng, size_kv, sequences)
    arrays = arrays_of(rng, S, size_kv)
    descriptor = SequenceDescriptor.from_seqlens_and_offsets(*zip(queries, keys))
    for name, options in (
        ("padding", {}),
        ("padding_causal", {"causal": True}),
        ("padding_causal_bottom_right", {"causal": True, "bottom_right": True}),
        ("padding_causal_bottom_right", {"causal": True, "bottom_right": True, "window": (2, -1)}),
        ("padding", {"window": (1, 2)}),
    ):
        module = DotProductAttention(attn_mask_type=name, window_size=options.get("window"))
        found = module.apply({}, *arrays, sequence_descriptor=descriptor)
        assert_is_dense(found, arrays, kept(queries, keys, S, size_kv, **options))
    jitted = jax.jit(lambda descriptor, *x: module.apply({}, *x, sequence_descriptor=descriptor))
    np.testing.assert_allclose(jitted(descriptor, *arrays), found, rtol=1e-5, atol=1e-6)


def test_a_mask_at_the_ends_of_segments_follows_their_ids():
    rng = np.random.default_rng(SEED + 1)
    print(f"SCOREMOD_TEST_SEED={SEED}")
    lengths, offsets = draw(rng, S, 3)
    ids, positions = (np.asarray(each) for each in ids_and_positions(lengths, offsets, S))
    other = np.sort(ids, axis=1)[:, ::-1]  # keys in another order: those of one segment follow one another
    of_keys = np.stack([(other == i + 1).sum(1) for i in range(3)], 1), np.stack([np.argmax(other == i + 1, 1) for i in range(3)], 1)
    keep = kept((lengths, offsets), of_keys, S, S, causal=True, bottom_right=True)
    arrays = arrays_of(rng, S, S)
    module = DotProductAttention(attn_mask_type="padding_causal_bottom_right")
    assert_is_dense(module.apply({}, *arrays, sequence_descriptor=SequenceDescriptor.from_segment_ids_and_pos((ids, other))), arrays, keep)
    # With positions, tokens may lie in any order.
    turn = rng.permutation(S)
    turned = [jnp.asarray(x[:, turn]) for x in (ids, positions)]
    key_positions = (
        np.take_along_axis(np.asarray(before_end(jnp.asarray(other), None)), np.arange(S)[None], 1) + (other[:, :, None] == other[:, None]).sum(2) - 1
    )
    descriptor = SequenceDescriptor.from_segment_ids_and_pos((turned[0], other), (turned[1], key_positions))
    found = module.apply({}, arrays[0][:, turn], *arrays[1:], sequence_descriptor=descriptor)
    assert_is_dense(found, [arrays[0][:, turn], *arrays[1:]], keep[:, turn])


def test_a_fault_would_be_seen():
    rng = np.random.default_rng(SEED + 2)
    lengths, offsets = np.array([[5, 4], [3, 6]], np.int32), np.array([[0, 6, -1], [1, 5, -1]], np.int32)
    arrays = arrays_of(rng, S, S)
    found = DotProductAttention(attn_mask_type="padding").apply(
        {}, *arrays, sequence_descriptor=SequenceDescriptor.from_seqlens_and_offsets(lengths, offsets + (offsets >= 0))
    )
    with pytest.raises(AssertionError):
        assert_is_dense(found, arrays, kept((lengths, offsets), (lengths, offsets), S, S))


def test_packed_layouts():
    """In layouts with T a row has several sequences; in those with H3D and H2D arrays are packed behind the heads."""
    rng = np.random.default_rng(SEED + 3)
    print(f"SCOREMOD_TEST_SEED={SEED}")
    sequences = draw(rng, S, 3)
    q, k, v = arrays = arrays_of(rng, S, S)
    turned = [jnp.swapaxes(x, 0, 1) for x in arrays]
    keep = kept(sequences, sequences, S, S, causal=True)
    descriptor = SequenceDescriptor.from_seqlens_and_offsets(*sequences)
    plain = ("vanilla", None, 0.0, False)
    for layout, qkv in {
        "thd_thd_thd": arrays,
        "thd_t2hd": (q, jnp.stack([k, v], 2)),
        "t3hd": (jnp.stack(arrays, 2),),
        "thd_th2d": (q, jnp.stack([k, v], 3)),
        "th3d": (jnp.stack(arrays, 3),),
        "bsh3d": (jnp.stack(arrays, 3),),
        "bs3hd": (jnp.stack(arrays, 2),),
    }.items():
        assert_is_dense(fused_attn(qkv, None, descriptor, None, "no_bias", "padding_causal", layout, *plain), arrays, keep)
    for layout, qkv in {
        "sbh3d": (jnp.stack(turned, 3),),
        "sbhd_sb2hd": (turned[0], jnp.stack(turned[1:], 2)),
        "sbhd_sbh2d": (turned[0], jnp.stack(turned[1:], 3)),
    }.items():
        found = fused_attn(qkv, None, descriptor, None, "no_bias", "padding_causal", layout, *plain)
        assert_is_dense(jnp.swapaxes(found, 0, 1), arrays, keep)


X = jnp.ones((B, S, H, D))
ROWS = np.array([[5, 4], [3, 6]], np.int32)


@pytest.mark.parametrize(
    ("descriptor", "message"),
    [
        (SequenceDescriptor.from_seqlens_and_offsets(ROWS[:, 0], ROWS), r"expected lengths \[batch, sequences\] and offsets .*from_seqlens\(lengths\)"),
        (SequenceDescriptor.from_seqlens_and_offsets(ROWS, np.array([[0, 4, 9], [0, 6, 12]])), "sequences within 14 positions that don't overlap, .* in row 0"),
        (SequenceDescriptor.from_seqlens_and_offsets(ROWS, np.array([[0, 11, 15], [0, 6, 12]])), "sequences within 14 positions"),
        (SequenceDescriptor.from_seqlens_and_offsets(ROWS, np.zeros((2, 3))), "expected offsets that are integers"),
        (SequenceDescriptor(offsets=(ROWS, ROWS)), "expected lengths and no segment_ids beside offsets"),
        (SequenceDescriptor(segment_positions=(ROWS, ROWS)), "expected segment_ids beside segment_positions"),
    ],
)
def test_mistakes(descriptor, message):
    with pytest.raises(scoremod.InvalidArgumentError, match=message):
        DotProductAttention(attn_mask_type="padding").apply({}, X, X, X, sequence_descriptor=descriptor)


def test_layouts_of_several_sequences_need_padding():
    with pytest.raises(scoremod.InvalidArgumentError, match="attn_mask_type: expected a type with padding beside qkv_layout=.t3hd.*q_offsets="):
        fused_attn((jnp.stack([X, X, X], 2),), None, None, None, "no_bias", "causal", "t3hd", "vanilla", None, 0.0, False)
    with pytest.raises(scoremod.InvalidArgumentError, match="attn_mask_type: expected a type with padding"):
        DotProductAttention(qkv_layout="thd_thd_thd", attn_mask_type="causal")
    assert DotProductAttention(qkv_layout="thd_thd_thd", attn_mask_type="padding_causal").layout == "BSHD"
    with pytest.raises(scoremod.InvalidArgumentError, match="qkv_layout: expected one without H3D"):
        DotProductAttention(qkv_layout="bsh3d", attn_mask_type="causal")
