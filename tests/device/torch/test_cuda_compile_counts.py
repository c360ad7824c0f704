"""How many problems serving compiles on a GPU: the loops of tests/torch/test_compile_counts.py, whose kernels and plans serve all sizes."""

import pytest
import serving_loops
import torch

SEED = torch.seed() % 2**31


@pytest.fixture
def seed():
    print(f"seed {SEED}")
    return SEED


def test_generation_with_a_growing_cache(compiles):
    pytest.importorskip("transformers")
    expected = serving_loops.generated("eager", "cuda")
    assert compiles() == 0
    assert torch.equal(serving_loops.generated("scoremod", "cuda"), expected) and expected.shape == (1, 217)
    assert 1 <= compiles() <= 2


def test_continuous_batching(compiles, seed):
    serving_loops.continuous_batching(100, seed, "cuda")
    assert 1 <= compiles() <= 3


@pytest.mark.parametrize("says_longest", [False, True])
def test_ragged_batches(compiles, seed, says_longest):
    serving_loops.ragged_batches(50, seed, "cuda", says_longest)
    assert compiles() == 1


def test_growing_pages(compiles, seed):
    serving_loops.growing_pages(40, seed, "cuda")
    assert compiles() == 1


def test_a_size_in_a_key_would_be_seen(compiles):
    serving_loops.leaking_sizes("cuda")
    assert compiles() == 10
