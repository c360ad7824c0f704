"""How many problems serving compiles: sizes come with the call, so that growing caches, other batches and longer tables compile nothing."""

import pytest
import serving_loops
import torch

from scoremod.torch import execution


def test_generation_with_a_growing_cache(compiles):
    pytest.importorskip("transformers")
    expected = serving_loops.generated("eager", "cpu")
    assert compiles() == 0
    assert torch.equal(serving_loops.generated("scoremod", "cpu"), expected) and expected.shape == (1, 217)
    assert 1 <= compiles() <= 2


def test_continuous_batching(compiles, seed):
    serving_loops.continuous_batching(100, seed, "cpu")
    assert 1 <= compiles() <= 3


@pytest.mark.parametrize("says_longest", [False, True])
def test_ragged_batches(compiles, seed, says_longest):
    serving_loops.ragged_batches(50, seed, "cpu", says_longest)
    assert compiles() == 1 and len(execution._open) == 1


def test_growing_pages(compiles, seed):
    serving_loops.growing_pages(40, seed, "cpu")
    assert compiles() == 1


def test_a_size_in_a_key_would_be_seen(compiles):
    serving_loops.leaking_sizes("cpu")
    assert compiles() == 10
