"""The calls that a server's mixed batch is split into: each query in one of them, and the results of one call for all."""

import itertools
import random as pseudo_random

import pytest
import torch

from scoremod.torch import flex_attention
from scoremod.torch.mixed_batches import one_call, split_calls

HEADS, DIM, PAGE, WIDTH = 2, 8, 4, 5


def drawn(seed):
    """(counts, threshold, tokens with padding, offsets, lengths, page table) of a batch."""
    choose = pseudo_random.Random(seed)
    threshold = choose.choice([1, 1, 3])
    counts = [choose.choice([0, 1, 1, threshold, choose.randint(2, 9)]) for _ in range(choose.randint(1, 6))]
    lengths = [choose.randint(count, PAGE * WIDTH) for count in counts]
    table = torch.tensor([[choose.randrange(12) for _ in range(WIDTH)] for _ in counts], dtype=torch.int32)
    offsets = torch.tensor([0, *itertools.accumulate(counts)], dtype=torch.int32)
    return counts, threshold, sum(counts) + choose.choice([0, 0, 3]), offsets, torch.tensor(lengths, dtype=torch.int32), table


def attend(call, query, pools):
    where = {"q_offsets": call.offsets, "page_table": call.page_table, "lengths": call.lengths, "max_length": call.most}
    return flex_attention(query[call.tokens], *pools, mask_mod="causal_bottom_right", **where)


def test_results_of_random_batches(seed, random):
    pools = torch.randn(2, 12, HEADS, PAGE, DIM, generator=random).unbind()
    for number in range(12):
        print("draw", number)
        counts, threshold, *tensors = drawn(seed + number)
        tokens, offsets, lengths, table = tensors
        calls = split_calls(counts, *tensors, threshold)
        assert [n for call in calls for n in range(len(counts))[call.numbers]] == (list(range(len(counts))) if any(counts) else [])
        assert [n for call in calls for n in range(tokens)[call.tokens]] == (list(range(tokens)) if any(counts) else [])
        for call in calls:
            own = counts[call.numbers]
            assert call.offsets.tolist() == [0, *itertools.accumulate(own)] and call.most >= max(own)
            assert call.count is None or own == [call.count] * len(own)
        with_prompts = [call for call in calls if max(counts[call.numbers]) > threshold]
        assert len(with_prompts) <= 1 and len(calls) <= 3
        if with_prompts:  # beside steps at neither end of it
            own = counts[with_prompts[0].numbers]
            assert (own[0] > threshold or not own[0]) and (own[-1] > threshold or not own[-1])
        if any(counts):
            query = torch.randn(tokens, HEADS, DIM, generator=random)
            expected = attend(one_call(*tensors, max(counts)), query, pools)
            torch.testing.assert_close(torch.cat([attend(call, query, pools) for call in calls]), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("counts", "threshold", "expected"),
    [
        ([1, 1, 5, 9], 1, [[1, 1], [5, 9]]),
        ([5, 9, 1, 1], 1, [[5, 9], [1, 1]]),
        ([1, 5, 1, 9, 1], 1, [[1], [5, 1, 9], [1]]),
        ([4, 4, 33, 2], 4, [[4, 4], [33], [2]]),
        ([1, 1, 1], 1, [[1, 1, 1]]),
        ([7, 7], 1, [[7, 7]]),
        ([0, 6, 0], 1, [[0, 6, 0]]),
        ([0, 0], 1, []),
    ],
)
def test_splits(counts, threshold, expected):
    offsets, table = torch.tensor([0, *itertools.accumulate(counts)], dtype=torch.int32), torch.zeros(len(counts), 1, dtype=torch.int32)
    calls = split_calls(counts, sum(counts), offsets, torch.tensor(counts, dtype=torch.int32), table, threshold)
    assert [call.lengths.tolist() for call in calls] == expected
