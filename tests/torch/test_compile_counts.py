"""How many problems serving compiles: sizes come with the call, so that growing caches, other batches and longer tables compile nothing."""

import random as pseudo_random

import pytest
import torch

import scoremod
from scoremod.torch import execution, flex_attention

H, D = 4, 16
pytestmark = pytest.mark.usefixtures("nothing_compiled")


@pytest.fixture
def compiles(nothing_compiled):
    """A function that gives how many problems were compiled since the test began."""
    before = scoremod.cache.statistics()["compiled"]["problems"]
    return lambda: scoremod.cache.statistics()["compiled"]["problems"] - before


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def dense(q, k, v, lengths, starts):
    """Attention of queries that begin at `starts`, with so many keys of each batch."""
    position, key = torch.arange(q.shape[2])[None, :, None] + starts[:, None, None], torch.arange(k.shape[2])
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(((key > position) | (key >= lengths[:, None, None]))[:, None], -torch.inf)
    return scores.softmax(-1).nan_to_num() @ v


def test_generation_with_a_growing_cache(compiles):
    transformers = pytest.importorskip("transformers")
    import scoremod.torch.transformers  # noqa: F401 (makes the name known)

    def generated(implementation):
        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=61, max_position_embeddings=512,
            pad_token_id=0, bos_token_id=1, eos_token_id=None,
        )  # fmt: skip
        config._attn_implementation = implementation
        model = transformers.LlamaForCausalLM(config).eval()
        ids = torch.arange(3, 20)[None]
        return model.generate(ids, max_new_tokens=200, do_sample=False)

    expected = generated("eager")
    assert compiles() == 0
    assert torch.equal(generated("scoremod"), expected) and expected.shape == (1, 217)
    assert 1 <= compiles() <= 2


def continuous_batching(steps, seed):
    choose, random = pseudo_random.Random(seed), torch.Generator().manual_seed(seed)
    room = 64
    for _ in range(steps):
        batch, queries = choose.randint(1, 32), choose.choice([1, 4, 17])
        q, k, v = (torch.randn(batch, H, n, D, generator=random) for n in (queries, room, room))
        lengths = torch.tensor([choose.randint(queries, room) for _ in range(batch)])
        found = flex_attention(q, k, v, mask_mod=causal, lengths=lengths, q_start=lengths - queries)
        torch.testing.assert_close(found, dense(q, k, v, lengths, lengths - queries))


def test_continuous_batching(compiles, seed):
    continuous_batching(100, seed)
    assert 1 <= compiles() <= 3


@pytest.mark.parametrize("says_longest", [False, True])
def test_ragged_batches(compiles, seed, says_longest):
    choose, random = pseudo_random.Random(seed), torch.Generator().manual_seed(seed)
    for _ in range(50):
        lengths = [choose.randint(1, 40) for _ in range(4)]
        ends = torch.tensor([0, *lengths]).cumsum(0)
        q, k, v = torch.randn(3, sum(lengths), H, D, generator=random)
        longest = choose.randint(max(lengths), 60) if says_longest else None
        found = flex_attention(q, k, v, mask_mod=causal, q_offsets=ends, max_length=longest)
        for first, end in zip(ends, ends[1:]):
            parts = [x[first:end].transpose(0, 1)[None] for x in (q, k, v)]
            expected = dense(*parts, torch.tensor([end - first]), torch.tensor([0]))
            torch.testing.assert_close(found[first:end].transpose(0, 1)[None], expected)
    assert compiles() == 1 and len(execution._open) == 1


def test_growing_pages(compiles, seed):
    choose, random = pseudo_random.Random(seed), torch.Generator().manual_seed(seed)
    batch, block = 3, 4
    for step in range(40):
        width, blocks = 2 + step // 4, batch * (2 + step // 4) + step
        k, v = torch.randn(2, blocks, H, block, D, generator=random)
        table = torch.randperm(blocks, generator=random)[: batch * width].reshape(batch, width)
        lengths = torch.tensor([choose.randint(1, width * block) for _ in range(batch)])
        q = torch.randn(batch, H, 1, D, generator=random)
        found = flex_attention(q, k, v, page_table=table, lengths=lengths)
        whole = [pool[table].transpose(1, 2).flatten(2, 3) for pool in (k, v)]
        torch.testing.assert_close(found, dense(q, *whole, lengths, torch.full((batch,), width * block)))
    assert compiles() == 1


def test_a_size_in_a_key_would_be_seen(compiles, monkeypatch):
    """With a size in each program, as a constant would bring it there."""
    for length in range(5, 15):
        q, k = torch.randn(1, H, 1, D), torch.randn(1, H, length, D)
        flex_attention(q, k, k, lambda score, b, h, q_idx, kv_idx: score + kv_idx * (length + 0))  # noqa: B023
    assert compiles() == 10
