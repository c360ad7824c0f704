"""Loops whose sizes change from call to call, as serving has them: each call is held to dense attention. Tests count what they compile."""

import random as pseudo_random

import torch

from scoremod.torch import flex_attention

HEADS, DIM = 4, 16
# How far results may be from dense attention: on a GPU it has TF32 products, or other sums.
TOLERANCES = {"cpu": {}, "cuda": {"rtol": 2e-3, "atol": 2e-3}}


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def dense(q, k, v, lengths, starts):
    """Attention of queries that begin at `starts`, with so many keys of each batch, in float64."""
    q, k, v = (x.double() for x in (q, k, v))
    position = torch.arange(q.shape[2], device=q.device)[None, :, None] + starts[:, None, None]
    key = torch.arange(k.shape[2], device=q.device)
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(((key > position) | (key >= lengths[:, None, None]))[:, None], -torch.inf)
    return scores.softmax(-1).nan_to_num() @ v


def expect(found, expected):
    torch.testing.assert_close(found.double(), expected, **({"rtol": 1.3e-6, "atol": 1e-5} | TOLERANCES[found.device.type]))


class Draw:
    """Random numbers and tensors of one seed."""

    def __init__(self, seed, device):
        self.choose, self.device, self._random = pseudo_random.Random(seed), device, torch.Generator().manual_seed(seed)

    def tensor(self, *shape):
        return torch.randn(shape, generator=self._random).to(self.device)

    def permutation(self, count):
        return torch.randperm(count, generator=self._random).to(self.device)

    def numbers(self, values):
        return torch.tensor(values, device=self.device)


def generated(implementation, device, tokens=200):
    """The tokens that a small Llama of transformers generates with its default cache, which grows."""
    import transformers

    import scoremod.torch.transformers  # noqa: F401 (makes the name known)

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=61, max_position_embeddings=512,
        pad_token_id=0, bos_token_id=1, eos_token_id=None,
    )  # fmt: skip
    config._attn_implementation = implementation
    model = transformers.LlamaForCausalLM(config).eval().to(device)
    return model.generate(torch.arange(3, 20, device=device)[None], max_new_tokens=tokens, do_sample=False)


def continuous_batching(steps, seed, device):
    draw, room = Draw(seed, device), 64
    for _ in range(steps):
        batch, queries = draw.choose.randint(1, 32), draw.choose.choice([1, 4, 17])
        q, k, v = (draw.tensor(batch, HEADS, n, DIM) for n in (queries, room, room))
        lengths = draw.numbers([draw.choose.randint(queries, room) for _ in range(batch)])
        found = flex_attention(q, k, v, mask_mod=causal, lengths=lengths, q_start=lengths - queries)
        expect(found, dense(q, k, v, lengths, lengths - queries))


def ragged_batches(batches, seed, device, says_longest):
    draw = Draw(seed, device)
    for _ in range(batches):
        lengths = [draw.choose.randint(1, 40) for _ in range(4)]
        ends = draw.numbers([0, *lengths]).cumsum(0)
        q, k, v = (draw.tensor(sum(lengths), HEADS, DIM) for _ in range(3))
        longest = draw.choose.randint(max(lengths), 60) if says_longest else None
        found = flex_attention(q, k, v, mask_mod=causal, q_offsets=ends, max_length=longest)
        first = 0
        for length in lengths:
            parts = [x[first : first + length].transpose(0, 1)[None] for x in (q, k, v)]
            expected = dense(*parts, draw.numbers([length]), draw.numbers([0]))
            expect(found[first : first + length].transpose(0, 1)[None], expected)
            first += length


def growing_pages(steps, seed, device):
    draw, batch, block = Draw(seed, device), 3, 4
    for step in range(steps):
        width, blocks = 2 + step // 4, batch * (2 + step // 4) + step
        k, v = (draw.tensor(blocks, HEADS, block, DIM) for _ in range(2))
        table = draw.permutation(blocks)[: batch * width].reshape(batch, width)
        lengths = draw.numbers([draw.choose.randint(1, width * block) for _ in range(batch)])
        q = draw.tensor(batch, HEADS, 1, DIM)
        found = flex_attention(q, k, v, page_table=table, lengths=lengths)
        whole = [pool[table].transpose(1, 2).flatten(2, 3) for pool in (k, v)]
        expect(found, dense(q, *whole, lengths, draw.numbers([width * block] * batch)))


def leaking_sizes(device):
    """Ten lengths, each of which is a number of its own program, as a constant would bring it there."""
    draw = Draw(0, device)
    for length in range(5, 15):
        q, k = draw.tensor(1, HEADS, 1, DIM), draw.tensor(1, HEADS, length, DIM)
        flex_attention(q, k, k, lambda score, b, h, q_idx, kv_idx: score + kv_idx * (length + 0))  # noqa: B023
