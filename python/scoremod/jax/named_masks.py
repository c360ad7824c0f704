"""Masks, windows and biases by the names that Flax's attention modules take, as score functions: they run on every backend, and beside any score_mod."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.typing import ArrayLike

from scoremod.errors import InvalidArgumentError, WrongTypeError
from scoremod.jax.arrays import within_int32
from scoremod.jax.segments import before_end, ids_and_positions

_PARTS = ("padding", "causal", "bottom_right")
BIAS_TYPES = ("no_bias", "pre_scale_bias", "post_scale_bias")


class SequenceDescriptor(NamedTuple):
    """The sequences of a batch: how many of the positions each has, or which of several sequences each position belongs to.

    lengths: (of queries, of keys), integer arrays [batch]; with offsets [batch, sequences].
    segment_ids: (of queries, of keys), integer arrays [batch, seq]; a position of id 0 belongs to none.
    segment_positions: likewise the positions within the sequences; without them those in the array, which are right for a causal mask where
        queries and keys are in the same places.
    offsets: (of queries, of keys), integer arrays [batch, sequences + 1]: where in its row each sequence begins."""

    lengths: tuple[ArrayLike, ArrayLike] | None = None
    segment_ids: tuple[ArrayLike, ArrayLike] | None = None
    segment_positions: tuple[ArrayLike, ArrayLike] | None = None
    offsets: tuple[ArrayLike, ArrayLike] | None = None

    @classmethod
    def from_seqlens(cls, lengths: ArrayLike | tuple[ArrayLike, ArrayLike]) -> SequenceDescriptor:
        """lengths: of queries and keys alike, or a pair."""
        return cls(lengths=_pair(lengths))

    @classmethod
    def from_seqlens_and_offsets(cls, lengths: ArrayLike | tuple[ArrayLike, ArrayLike], offsets: ArrayLike | tuple[ArrayLike, ArrayLike]) -> SequenceDescriptor:
        """Several sequences in a row. lengths: [batch, sequences], below 1 for one that is none. offsets: [batch, sequences + 1], the positions at
        which they begin, and one more that nothing reads. Arrays for queries and keys alike, or pairs."""
        return cls(lengths=_pair(lengths), offsets=_pair(offsets))

    @classmethod
    def from_segment_ids_and_pos(
        cls, segment_ids: ArrayLike | tuple[ArrayLike, ArrayLike], segment_positions: ArrayLike | tuple[ArrayLike, ArrayLike] | None = None
    ) -> SequenceDescriptor:
        """Arrays for queries and keys alike, or pairs of them."""
        return cls(segment_ids=_pair(segment_ids), segment_positions=None if segment_positions is None else _pair(segment_positions))


def _pair(arrays: ArrayLike | tuple[ArrayLike, ArrayLike]) -> tuple[ArrayLike, ArrayLike]:
    return tuple(arrays) if isinstance(arrays, (tuple, list)) else (arrays, arrays)  # pyright: ignore[reportReturnType]


class _MaskType(NamedTuple):
    padding: bool
    causal: bool
    bottom_right: bool


def parsed_mask_type(name):
    """The parts of a mask type's name: "no_mask", or "padding", "causal" and "bottom_right" in any order with "_" between them."""
    rest, found = f"_{name}_", []
    for part in _PARTS:
        if f"_{part}_" in rest:
            rest = rest.replace(f"_{part}_", "_", 1)
            found.append(part)
    if name != "no_mask" and (rest != "_" or not found or found == ["bottom_right"] or found == ["padding", "bottom_right"]):
        raise InvalidArgumentError(
            f'attn_mask_type: expected "no_mask", "padding", "causal", "causal_bottom_right", "padding_causal" or "padding_causal_bottom_right", found {name!r}'
        )
    return _MaskType(*(part in found for part in _PARTS))


def parsed_window(window):
    """(left, right), either of which is None where it has no bound; both are inclusive."""
    if window is None:
        return None, None
    bounds = tuple(window) if isinstance(window, (tuple, list)) else ()
    if len(bounds) != 2 or any(isinstance(bound, bool) or not isinstance(bound, int) or bound < -1 for bound in bounds):
        raise InvalidArgumentError(f"window_size: expected (left, right), integers of at least 0, or -1 for no bound; found {window!r}")
    return tuple(None if bound == -1 else bound for bound in bounds)


def named_mask(mask_type, window, descriptor, seq_q, seq_kv):
    """The mask_mod of a mask's name, a window and a SequenceDescriptor, or None; and the lengths that go with it, or None."""
    padding, causal, bottom_right = parsed_mask_type(mask_type)
    left, right = parsed_window(window)
    if causal:
        right = 0 if right is None else min(right, 0)
    lengths, ids, positions = _described(SequenceDescriptor() if descriptor is None else descriptor, (seq_q, seq_kv))
    if padding and lengths is None and ids is None:
        raise InvalidArgumentError(
            f"sequence_descriptor: expected lengths or segment ids with attn_mask_type={mask_type!r}, found none; give SequenceDescriptor.from_seqlens(lengths)"
        )
    if not padding and (lengths is not None or ids is not None):
        raise InvalidArgumentError(
            f"attn_mask_type: expected a type with padding beside a sequence_descriptor, found {mask_type!r}; add padding to it, or leave the descriptor out"
        )
    if bottom_right and ids is not None:
        positions = [before_end(*each) for each in zip(ids, positions or (None, None))]
    sizes = _arrays("lengths", lengths)
    if left is None and right is None and ids is None:
        return None, lengths

    def mask_mod(b, h, q_idx, kv_idx):
        shift = 0
        if bottom_right:
            shift = seq_kv - seq_q if sizes is None else sizes[1][b] - sizes[0][b]
        keep = True
        if ids is not None:
            keep = (ids[0][b, q_idx] == ids[1][b, kv_idx]) & (ids[0][b, q_idx] != 0)
        query, key = (q_idx + shift, kv_idx) if positions is None else (positions[0][b, q_idx], positions[1][b, kv_idx])
        if right is not None:
            keep = keep & (key - query <= right)
        if left is not None:
            keep = keep & (query - key <= left)
        return keep

    return mask_mod, lengths


def _described(descriptor, sizes):
    """(lengths, segment ids, positions in segments) of a descriptor, each a pair or None. sizes: of a row of queries and of one of keys."""
    if not isinstance(descriptor, SequenceDescriptor):
        raise WrongTypeError(
            f"sequence_descriptor: expected a scoremod.jax.SequenceDescriptor, found {type(descriptor).__name__}; a mask of an array goes into mask_mod"
        )
    lengths, ids, positions, offsets = descriptor
    if positions is not None and ids is None:
        raise InvalidArgumentError(
            "sequence_descriptor: expected segment_ids beside segment_positions, found none; give SequenceDescriptor.from_segment_ids_and_pos(ids, positions)"
        )
    if offsets is None:
        return lengths, _arrays("segment_ids", ids), _arrays("segment_positions", positions)
    if lengths is None or ids is not None:
        raise InvalidArgumentError(
            "sequence_descriptor: expected lengths and no segment_ids beside offsets; give SequenceDescriptor.from_seqlens_and_offsets(lengths, offsets)"
        )
    for name, pair in (("lengths", lengths), ("offsets", offsets)):
        _arrays(name, pair)  # are integers
    ids, positions = zip(*(ids_and_positions(*each) for each in zip(lengths, offsets, sizes)))
    return None, ids, positions


def _arrays(name, pair):
    if pair is None:
        return None
    arrays = tuple(jnp.asarray(each) for each in pair)
    for array in arrays:
        if not jnp.issubdtype(array.dtype, jnp.integer):
            raise InvalidArgumentError(f"sequence_descriptor: expected {name} that are integers, found {array.dtype}")
    # Differences of unsigned ones would wrap. Signed ones of 64 bits are checked where the mask reads them.
    return tuple(array if array.dtype in (jnp.int32, jnp.int64) else within_int32(array) for array in arrays)


def biased(score_mod, bias, bias_type, scale):
    """The score_mod of which a bias comes first: [batch, heads, seq_q, seq_kv], where sizes of 1 repeat. scale: of the scores, which a bias before
    scaling is multiplied by."""
    if bias_type not in BIAS_TYPES:
        raise InvalidArgumentError(f"bias_type: expected one of {', '.join(BIAS_TYPES)}, found {bias_type!r}")
    if (bias is None) != (bias_type == "no_bias"):
        found = "none" if bias is None else f"one of shape {jnp.shape(bias)}"
        raise InvalidArgumentError(f"bias: expected {'none' if bias is not None else 'an array'} with bias_type={bias_type!r}, found {found}")
    if bias is None:
        return score_mod
    bias = jnp.asarray(bias)
    if bias.ndim != 4:
        raise InvalidArgumentError(f"bias: expected 4 dimensions [batch, heads, seq_q, seq_kv], where sizes of 1 broadcast, found shape {bias.shape}")
    factor = scale if bias_type == "pre_scale_bias" else 1.0

    def score(score, *indices):
        place: Any = tuple(0 if size == 1 else index for size, index in zip(bias.shape, indices))
        added = score + factor * bias[place]
        return added if score_mod is None else score_mod(added, *indices)

    return score
