"""Stripes of a sequence: what the functions see at each step of a ring, and how sequences are reordered."""

import functools

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

import scoremod
from scoremod.shard_distance import DUAL_CHUNK_SWAP, chunks_of
from scoremod.torch import api, context_parallel_attention, flex_attention, stripe, unstripe
from scoremod.call_spec import CallSpec
from scoremod.torch.call import call_of
from scoremod.torch.stripes import Step, Stripes

LENGTH, SHARDS = 12, 3


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


@pytest.mark.parametrize("tokens", [1, 4])
def test_each_step_computes_its_part_of_the_scores(tokens, random):
    """The LSE of attention between two shards' queries and keys shows which keys are kept and their modified scores."""
    stripes = Stripes.of(SHARDS, LENGTH, tokens)
    q, k, v = (torch.randn(1, 2, SHARDS * LENGTH, 8, generator=random) for _ in range(3))
    slopes = torch.randn(2, generator=random)

    def score_mod(score, b, h, q_idx, kv_idx):
        return score + slopes[h] * (kv_idx - q_idx) + 0.01 * q_idx

    shards = [stripe(x, SHARDS, 2, tokens).chunk(SHARDS, dim=2) for x in (q, k, v)]
    positions = stripe(torch.arange(SHARDS * LENGTH), SHARDS, 0, tokens).chunk(SHARDS)
    for rank in range(SHARDS):
        for source in range(SHARDS):
            step = Step(stripes, rank, source, torch.device("cpu"))
            tensors = shards[0][rank], shards[1][source], shards[2][source]
            functions = step.at_positions(score_mod, 3), step.at_positions(causal, 2)
            part, _ = api.part_of_call(*tensors, *functions, False, CallSpec(offsets=scoremod.Offsets()), step)
            _, lse, *_ = torch.ops.scoremod.attention_forward(*tensors, part.operands, None, [], False, True, part.text)
            i, j = positions[rank][:, None], positions[source]
            scores = score_mod(tensors[0] @ tensors[1].transpose(2, 3) / 8**0.5, 0, torch.arange(2)[:, None, None], i, j)
            torch.testing.assert_close(lse, torch.where(causal(0, 0, i, j), scores, -torch.inf).logsumexp(-1))


def test_masks_at_a_known_distance_read_no_shard():
    q = torch.zeros(1, 1, LENGTH, 8)
    texts = set()
    for rank in range(SHARDS):
        for source in range(SHARDS):
            step = Step(Stripes.of(SHARDS, LENGTH, True), rank, source, q.device)
            part, _ = api.part_of_call(q, q, q, None, step.at_positions(causal, 2), False, CallSpec(offsets=scoremod.Offsets()), step)
            assert not part.operands
            texts.add(call_of(part.text).program.text())
    assert len(texts) == 2  # with the diagonal and without


class _Calls(TorchDispatchMode):
    """Records scoremod's operations, each with the problem that it is of."""

    def __init__(self):
        super().__init__()
        self.made = []

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        if function.namespace == "scoremod":
            self.made.append((str(function), arguments[-1]))
        return function(*arguments, **(options or {}))


@pytest.mark.parametrize("options", [{}, {"striped": True}, {"striped": 4, "way": "all_gather"}])
def test_one_process_makes_the_plain_call(options, random):
    leaves = [torch.randn(1, 2, LENGTH, 8, generator=random).requires_grad_() for _ in range(3)]
    slopes = torch.randn(2, generator=random)
    score_mod = lambda score, b, h, q_idx, kv_idx: score + slopes[h] * (kv_idx - q_idx)  # noqa: E731
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        parallel = functools.partial(context_parallel_attention, group=dist.group.WORLD, **options)
        made, results = [], []
        for attention in (parallel, flex_attention):
            with _Calls() as calls:
                o = attention(*leaves, score_mod, mask_mod=causal)
                results.append([o, *torch.autograd.grad(o, leaves, torch.ones_like(o))])
            made.append(calls.made)
    finally:
        dist.destroy_process_group()
    assert made[0] == made[1] and len(made[0]) == 2
    assert all(torch.equal(one, other) for one, other in zip(*results))


def test_stripes_are_dealt_out_in_turn_and_come_back():
    numbers = torch.arange(12)
    assert stripe(numbers, 2, 0, 2).tolist() == [0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11]
    x = torch.randn(2, 3, 12, 4)
    for tokens in (1, 2, 3):
        assert torch.equal(unstripe(stripe(x, 2, -2, tokens), 2, 2, tokens), x)
    with pytest.raises(scoremod.InvalidArgumentError, match='striped: expected True, False, a number of tokens or "dual_chunk_swap", found -1'):
        Stripes.of(2, 12, -1)


@pytest.mark.parametrize(("reordered", "name"), [(stripe, "stripe"), (unstripe, "unstripe")])
def test_a_length_that_stripes_do_not_divide_is_refused(reordered, name):
    with pytest.raises(scoremod.InvalidArgumentError, match=f"^{name}: expected a length along dim 1 that is a multiple of shards . tokens, 6, found 16"):
        reordered(torch.ones(2, 16), 3, -1, 2)
    with pytest.raises(scoremod.InvalidArgumentError, match="multiple of shards . tokens, 0, found 16"):
        reordered(torch.ones(2, 16), 0, -1)


def test_chunks_are_dealt_out_in_pairs_and_come_back():
    x = torch.arange(LENGTH)
    assert stripe(x, SHARDS, 0, DUAL_CHUNK_SWAP).tolist() == [0, 1, 10, 11, 2, 3, 8, 9, 4, 5, 6, 7]
    x = torch.arange(24 * 24).reshape(24, 24)
    for dim in (0, 1, -1):
        assert torch.equal(unstripe(stripe(x, SHARDS, dim, DUAL_CHUNK_SWAP), SHARDS, dim, DUAL_CHUNK_SWAP), x)
        assert not torch.equal(stripe(x, SHARDS, dim, DUAL_CHUNK_SWAP), x)
    for reorder, name in ((stripe, "stripe"), (unstripe, "unstripe")):
        with pytest.raises(scoremod.InvalidArgumentError, match=f"^{name}: expected a length along dimension 0 that is a multiple of 2 . shards, 10, found 24"):
            reorder(x, 5, 0, DUAL_CHUNK_SWAP)
        with pytest.raises(scoremod.InvalidArgumentError, match='tokens: expected a number of tokens or "dual_chunk_swap", found .zigzag'):
            reorder(x, 3, 0, "zigzag")
    with pytest.raises(scoremod.InvalidArgumentError, match="striped: expected an even length of each shard, which has two chunks, found 3"):
        chunks_of(3, DUAL_CHUNK_SWAP)
