"""New keys and values in the pages of a cache, against a loop over tokens."""

import os
import secrets

import jax
import numpy as np
import pytest

import scoremod
from scoremod.jax import append_to_pages

SEED = int(os.environ.get("SCOREMOD_TEST_SEED") or secrets.randbelow(2**31))


def draw(rng, batch, page, width, tokens):
    """Arguments of append_to_pages with so many tokens, the last of which no sequence has; and what a loop makes of the pages."""
    pages = batch * width + 2
    pools = [rng.standard_normal((pages, page, 2, dim)).astype(np.float32) for dim in (4, 6)]
    table = rng.permutation(pages)[: batch * width].reshape(batch, width).astype(np.int32)
    lengths = rng.integers(0, width * page + 1, batch).astype(np.int32)
    counts = rng.integers(0, np.minimum(lengths, tokens // batch) + 1)
    offsets = np.cumsum([0, *counts]).astype(np.int32)
    new = [rng.standard_normal((tokens, *pool.shape[2:])).astype(np.float32) for pool in pools]
    expected = [pool.copy() for pool in pools]
    for b, (count, length) in enumerate(zip(counts, lengths)):
        for i in range(count):
            place = length - count + i
            for pool, each in zip(expected, new):
                pool[table[b, place // page], place % page] = each[offsets[b] + i]
    return (*pools, *new, table, lengths, offsets), expected


@pytest.mark.parametrize("run", [append_to_pages, jax.jit(append_to_pages)], ids=["eager", "jit"])
def test_random_appends(run):
    print(f"SCOREMOD_TEST_SEED={SEED}")
    rng = np.random.default_rng(SEED)
    for shape in ((3, 4, 2, 9), (1, 1, 3, 5)):
        for _ in range(8):
            arguments, expected = draw(rng, *shape)
            for found, each in zip(run(*arguments), expected):
                np.testing.assert_array_equal(found, each)


def test_equally_many_tokens_of_each_sequence():
    pools = np.zeros((4, 2, 1, 3), np.float32)
    new = np.arange(12, dtype=np.float32).reshape(2, 2, 1, 3)
    k, v = append_to_pages(pools, pools, new, 2 * new, np.array([[3, 0], [1, 2]]), np.array([3, 2]))
    np.testing.assert_array_equal(k[:, :, 0], [[new[0, 1, 0], [0, 0, 0]], new[1, :, 0], np.zeros((2, 3)), [[0, 0, 0], new[0, 0, 0]]])
    np.testing.assert_array_equal(v, 2 * k)


def test_what_does_not_fit_is_refused_or_not_written():
    pool, new = np.zeros((6, 4, 2, 8), np.float32), np.ones((5, 2, 8), np.float32)
    table, lengths, offsets = np.array([[0, 1], [2, 3]]), np.array([5, 8]), np.array([0, 1, 5])
    for wrong, message in (
        ((np.array([[0, 1], [2, 6]]), lengths), "found none for token 1 of sequence 1"),
        ((np.array([[0, -1], [2, 3]]), lengths), "found none for token 0 of sequence 0"),
        ((table, np.array([5, 9])), "found none for token 4 of sequence 1"),
        ((table, np.array([5, 3])), "found none for token 1 of sequence 1"),
    ):
        with pytest.raises(scoremod.InvalidArgumentError, match=message):
            append_to_pages(pool, pool, new, new, *wrong, offsets)
        right, _ = append_to_pages(pool, pool, new, new, table, lengths, offsets)
        found, _ = jax.jit(append_to_pages)(pool, pool, new, new, *wrong, offsets)
        assert 0 < found.sum() < right.sum()  # the others are
    for changed, message in (
        (dict(key=new[:, :1]), "key: expected float32 with 2 heads"),
        (dict(value=new[:4]), "value: expected"),
        (dict(offsets=offsets[:2]), "offsets: expected 3 numbers"),
        (dict(lengths=lengths[:1]), "lengths: expected a length"),
        (dict(offsets=None), r"key: expected \[batch, sequence, KV heads, dim\]"),
        (dict(v_pages=pool[:, :3]), "v_pages: expected"),
    ):
        given = dict(k_pages=pool, v_pages=pool, key=new, value=new, page_table=table, lengths=lengths, offsets=offsets)
        with pytest.raises(scoremod.InvalidArgumentError, match=message):
            append_to_pages(**given | changed)
