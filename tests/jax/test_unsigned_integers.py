"""Lengths, offsets, page tables and positions of unsigned and of narrow integers are those of int32: differences of them may be below 0."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scoremod.errors import InvalidArgumentError
from scoremod.jax import append_to_pages, flex_attention
from scoremod.jax.linen import DotProductAttention, SequenceDescriptor

# More queries than keys in some of the sequences.
QUERIES, KEYS = np.array([6, 2, 5]), np.array([3, 7, 0])
TABLE = np.array([[4, 0], [2, 3], [1, 5]])


def draw(*shapes):
    rng = np.random.default_rng(1)
    return [jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes]


def ends(counts):
    return np.cumsum([0, *counts])


def lengths(of):
    q, k, v = draw((3, 6, 2, 4), (3, 8, 2, 4), (3, 8, 2, 4))
    return lambda keys: flex_attention(q, k, v, mask_mod="causal_bottom_right", lengths=keys), (of(KEYS),)


def pairs_of_lengths(of):
    q, k, v = draw((3, 6, 2, 4), (3, 8, 2, 4), (3, 8, 2, 4))
    return lambda *both: flex_attention(q, k, v, mask_mod="causal_bottom_right", lengths=both), (of(QUERIES), of(KEYS))


def offsets(of):
    q, k, v = draw((13, 2, 4), (10, 2, 4), (10, 2, 4))
    return lambda x, y: flex_attention(q, k, v, mask_mod="causal_bottom_right", layout="THD", q_offsets=x, kv_offsets=y), (of(ends(QUERIES)), of(ends(KEYS)))


def pages(of):
    q, k, v = draw((3, 6, 2, 4), (6, 4, 2, 4), (6, 4, 2, 4))
    return lambda table, keys: flex_attention(q, k, v, mask_mod="causal_bottom_right", page_table=table, lengths=keys), (of(TABLE), of(KEYS))


def gradients_of_pages(of):
    q, k, v = draw((3, 6, 2, 4), (6, 4, 2, 4), (6, 4, 2, 4))
    return lambda table, keys: jax.grad(lambda k: (flex_attention(q, k, v, page_table=table, lengths=keys) ** 2).sum())(k), (of(TABLE), of(KEYS))


def new_keys(of):
    k, v, *new = draw((6, 4, 2, 4), (6, 4, 2, 4), (9, 2, 4), (9, 2, 4))
    return lambda *places: append_to_pages(k, v, *new, *places)[0], (of(TABLE), of(np.array([4, 5, 3])), of(ends([2, 4, 3])))


def described(of):
    module, arrays = DotProductAttention(attn_mask_type="padding_causal_bottom_right"), draw((3, 6, 2, 4), (3, 8, 2, 4), (3, 8, 2, 4))
    return lambda *both: module.apply({}, *arrays, sequence_descriptor=SequenceDescriptor.from_seqlens(both)), (of(QUERIES), of(KEYS))


def positions(of):
    module, arrays = DotProductAttention(attn_mask_type="padding_causal"), draw((1, 6, 2, 4), (1, 6, 2, 4), (1, 6, 2, 4))
    ids, places = of(np.array([[1, 1, 1, 2, 2, 2]])), of(np.array([[0, 1, 2, 0, 1, 2]]))
    return lambda *both: module.apply({}, *arrays, sequence_descriptor=SequenceDescriptor.from_segment_ids_and_pos(*both)), (ids, places)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.int8])
@pytest.mark.parametrize("case", [lengths, pairs_of_lengths, offsets, pages, gradients_of_pages, new_keys, described, positions])
def test_are_those_of_int32(case, dtype):
    call, given = case(lambda x: x.astype(np.int32))
    expected = call(*given)
    call, given = case(lambda x: x.astype(dtype))
    for found in (call(*given), call(*map(jnp.asarray, given)), jax.jit(call)(*given)):
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_numbers_of_64_bits():
    with jax.enable_x64(True):
        for case in (lengths, pages, gradients_of_pages):
            call, given = case(lambda x: x.astype(np.int32))
            expected = call(*given)
            call, given = case(lambda x: x.astype(np.uint64))
            np.testing.assert_allclose(jax.jit(call)(*given), expected, atol=1e-6)


def test_unsigned_offsets_that_descend_are_refused():
    q, k, v = draw((8, 2, 4), (8, 2, 4), (8, 2, 4))
    with pytest.raises(InvalidArgumentError, match="q_offsets: expected numbers from 0 to 8, the number of tokens, that do not descend"):
        flex_attention(q, k, v, layout="THD", q_offsets=np.array([0, 5, 3], np.uint8))
