"""Mixed batches: prefill, chunks of it and decode steps in one call over a paged KV cache, against each sequence by itself in float64."""

import random as pseudo_random
from typing import NamedTuple

import dense_reference as dense
import pytest
import torch
import torch.fx.experimental._config

import scoremod
from scoremod.torch import api, explain, flex_attention


class Batch(NamedTuple):
    """A mixed batch. before: tokens before the first sequence. pools: key and value [pages, KV heads, page size, dim]."""

    query: torch.Tensor
    pools: list
    offsets: torch.Tensor
    table: torch.Tensor
    lengths: torch.Tensor
    bias: torch.Tensor
    sink: torch.Tensor

    def keys(self, b, pool):
        """The keys of a sequence, [heads, length, dim]."""
        length, page = int(self.lengths[b]), pool.shape[2]
        pages = self.table[b, : -(-length // page)].tolist()
        return torch.cat([pool[n] for n in pages], 1)[:, :length] if pages else pool.new_zeros(pool.shape[1], 0, pool.shape[3])


def draw(seed, dtype=torch.float32, longest=9):
    """Sequences with one query, with many, with more queries than keys, with none, and with no keys. Pages lie in any order among pages of NaN, and two
    sequences may share one."""
    choose, random = pseudo_random.Random(seed), torch.Generator().manual_seed(seed)
    batch, page, width = choose.randint(1, 5), choose.choice([1, 3, 4, 8]), choose.randint(1, 5)
    heads_kv, dim, dim_v = choose.choice([1, 2]), choose.choice([8, 16]), choose.choice([8, 12])
    heads = heads_kv * choose.choice([1, 2, 3])
    queries = [choose.choice([0, 1, 1, choose.randint(2, longest)]) for _ in range(batch)]
    queries[choose.randrange(batch)] = choose.randint(1, longest)
    lengths = [choose.choice([0, n, choose.randint(0, width * page), width * page]) for n in queries]
    lengths = [min(n, width * page) for n in lengths]
    pages = batch * width + 3
    ids = choose.sample(range(pages), batch * width)
    table = torch.full((batch, width), -7)
    for b, length in enumerate(lengths):
        used = -(-length // page)
        table[b, :used] = torch.tensor(ids[b * width : b * width + used], dtype=torch.int64)
        if b and used and lengths[b - 1] and choose.random() < 0.5:  # a prompt that two have
            table[b, 0] = table[b - 1, 0]
    pools = [torch.randn(pages, page, heads_kv, n, generator=random, dtype=torch.float32).to(dtype) for n in (dim, dim_v)]
    read = {n for b, length in enumerate(lengths) for n in table[b, : -(-length // page)].tolist()}
    for pool in pools:
        pool[[n for n in range(pages) if n not in read]] = torch.nan
    if choose.random() < 0.7:
        pools = [pool.transpose(1, 2) for pool in pools]
    else:
        pools = [pool.transpose(1, 2).contiguous() for pool in pools]
    before, after = choose.choice([(0, 0), (0, 0), (2, 1), (0, 3)])
    offsets = torch.tensor([0, *queries]).cumsum(0) + before
    query = torch.randn(int(offsets[-1]) + after, heads, dim, generator=random).to(dtype)
    integers = choose.choice([torch.int32, torch.int64])
    bias, sink = torch.randn(batch, heads, generator=random), torch.randn(heads, generator=random)
    return Batch(query, pools, offsets.to(integers), table.to(integers), torch.tensor(lengths, dtype=integers), bias, sink)


def functions(bias, window, cap):
    """A soft cap, a bias by sequence and distance, and a causal window."""

    def score_mod(s, b, h, q_idx, kv_idx):
        return cap * torch.tanh(s / cap) + bias[b, h] * (kv_idx - q_idx)

    def mask_mod(b, h, q_idx, kv_idx):
        return (q_idx >= kv_idx) & (q_idx - kv_idx < window)

    return score_mod, mask_mod


def attend(query, key, value, bias, sink, batch, window=5, with_sink=True, **options):
    score_mod, mask_mod = functions(bias, window, 3.0)
    return flex_attention(
        query, key, value, score_mod, mask_mod=mask_mod, q_offsets=batch.offsets, page_table=batch.table, lengths=batch.lengths,
        sink=sink if with_sink else None, q_start="bottom_right", enable_gqa=True, return_lse=True, **options,
    )  # fmt: skip


def one_by_one(query, key, value, bias, sink, batch, window=5, with_sink=True):
    """(o, lse) of dense attention to each sequence, whose last query stands at its last key."""
    o = query.new_zeros(*query.shape[:-1], value.shape[-1])
    lse = torch.full(query.shape[:2], -torch.inf, dtype=torch.promote_types(query.dtype, torch.float32))
    for b in range(batch.lengths.shape[0]):
        first, end = batch.offsets[b : b + 2].tolist()
        if first == end:
            continue
        shift = int(batch.lengths[b]) - (end - first)
        score_mod, mask_mod = functions(bias[b : b + 1], window, 3.0)
        keys, values = batch.keys(b, key)[None], batch.keys(b, value)[None]
        if keys.shape[2]:
            o_b, lse_b = dense.attention_and_lse(
                query[first:end].transpose(0, 1)[None],
                keys,
                values,
                lambda s, b, h, i, j: score_mod(s, b, h, i + shift, j),  # noqa: B023
                lambda b, h, i, j: mask_mod(b, h, i + shift, j),  # noqa: B023
            )
        else:
            o_b, lse_b = (x.transpose(0, 1)[None] for x in (o[first:end], lse[first:end, :, None]))
            lse_b = lse_b[..., 0]
        if with_sink:
            o_b, lse_b = o_b * torch.sigmoid(lse_b - sink[:, None])[..., None], torch.logaddexp(lse_b, sink[:, None])
        o = torch.cat([o[:first], o_b[0].transpose(0, 1).to(o.dtype), o[end:]])
        lse = torch.cat([lse[:first], lse_b[0].T, lse[end:]])
    return o, lse


@pytest.fixture(autouse=True)
def afresh(nothing_compiled):
    torch._dynamo.reset()


def held_to_the_definition(batch, run, **options):
    given = [batch.query, *batch.pools, batch.bias, batch.sink]
    with torch.no_grad():
        found = run(*given, batch, **options)
        plain, truth = (one_by_one(*x, batch, **options) for x in (given, dense.widened(given)))
    dense.assert_close(found, plain, truth, ("o", "lse"))


@pytest.mark.parametrize("road", ["eager", "operator", "compiled"])
def test_random_mixed_batches(road, seed, monkeypatch):
    run = attend
    if road == "operator":
        monkeypatch.setattr(api, "is_plain", lambda *tensors: False)
    if road == "compiled":
        run = torch.compile(attend, fullgraph=True, backend="aot_eager", dynamic=True)
    for number in range(2 if road == "compiled" else 12):
        print("draw", number)
        batch = draw(seed + number, (torch.float32, torch.float32, torch.bfloat16)[number % 3])
        held_to_the_definition(batch, run, window=(3, 10**6)[number % 2], with_sink=number % 5 < 3)


@pytest.mark.parametrize("road", ["eager", "compiled"])
def test_gradients_are_those_of_gathered_keys(road, seed):
    run = torch.compile(attend, fullgraph=True, backend="aot_eager", dynamic=True) if road == "compiled" else attend
    for number in range(1 if road == "compiled" else 4):
        print("draw", number)
        batch = next(each for each in (draw(seed + 100 * number + n) for n in range(100)) if ((each.lengths > 0) & (each.offsets.diff() > 0)).any())
        random = torch.Generator().manual_seed(seed)
        given = [batch.query, *batch.pools, batch.bias, batch.sink]
        shape = *batch.query.shape[:2], batch.pools[1].shape[-1]
        weights = [torch.randn(shape, generator=random), torch.randn(shape[:2], generator=random)]
        found, plain = (dense.results(lambda *x: f(*x, batch), given, weights) for f in (run, one_by_one))  # noqa: B023
        truth = dense.results(lambda *x: one_by_one(*x, batch), dense.widened(given), dense.widened(weights))  # noqa: B023
        assert all(gradient.isfinite().all() for gradient in found[2:])
        dense.assert_close(found, plain, truth, ("o", "lse", "query", "key", "value", "bias", "sink"))


def longest_with_queries(batch):
    """The number of the longest sequence among those that have queries."""
    return int(torch.where(batch.offsets.diff() > 0, batch.lengths, 0).argmax())


def other_pages(batch, b):
    """Pages with numbers that are not the first one of sequence b."""
    return [n for n in range(batch.pools[0].shape[0]) if n != batch.table[b, 0] and not batch.pools[0][n].isnan().any()]


def shows_faults(batch):
    b = longest_with_queries(batch)
    return bool((batch.lengths > batch.offsets.diff()).all()) and batch.lengths[b] > 2 and batch.offsets[b] < batch.offsets[b + 1] and other_pages(batch, b)


def test_a_fault_would_be_seen(seed):
    """Another sequence's page, a length that is off by one, and queries that begin elsewhere."""
    batch = next(each for each in (draw(seed + n) for n in range(1000)) if shows_faults(each))
    batch = batch._replace(bias=batch.bias * 0.01)  # so that no key's weight is too small to be seen
    b = longest_with_queries(batch)
    other = batch.table.clone()
    other[b, 0] = other_pages(batch, b)[0]
    for faulty in (batch._replace(table=other), batch._replace(lengths=batch.lengths - 1), batch._replace(bias=batch.bias.roll(1, 1) + 1)):
        with pytest.raises(AssertionError):
            held_to_the_definition(batch, lambda *x, **o: attend(*x[:3], faulty.bias, x[4], faulty, **o), window=10**6)  # noqa: B023


def test_masks_and_dropout_of_a_mixed_batch_are_those_of_padded_queries(seed):
    """A call of [batch, heads, sequence, dim] over the same pages, with the lengths of the queries, has the same rows."""
    for number in range(6):
        batch = draw(seed + number)
        counts, most = batch.offsets.diff(), int(batch.offsets.diff().max())
        padded = torch.zeros(len(counts), batch.query.shape[1], most, batch.query.shape[2])
        for b, (first, count) in enumerate(zip(batch.offsets, counts)):
            padded[b, :, :count] = batch.query[first : first + count].transpose(0, 1)
        options = dict(page_table=batch.table, enable_gqa=True, return_lse=True, dropout_p=0.3, mask_mod="causal_bottom_right")
        torch.manual_seed(number)
        found = flex_attention(batch.query, *batch.pools, q_offsets=batch.offsets, lengths=batch.lengths, **options)
        torch.manual_seed(number)
        expected = flex_attention(padded, *batch.pools, lengths=(counts, batch.lengths), **options)
        for x, y in zip(found, expected):
            for b, (first, count) in enumerate(zip(batch.offsets, counts)):
                torch.testing.assert_close(x[first : first + count].transpose(0, 1), y[b, :, :count])
        assert torch.equal(found[0][: batch.offsets[0]], torch.zeros_like(found[0][: batch.offsets[0]]))
        assert found[1][batch.offsets[-1] :].isneginf().all()


def test_batches_of_changing_shapes_compile_once(seed):
    before = scoremod.cache.statistics()["compiled"]["problems"]
    first = draw(seed)
    for batch in (draw_like(first, seed + n) for n in range(12)):
        score_mod, mask_mod = functions(batch.bias, 4, 3.0)
        found = flex_attention(
            batch.query, *batch.pools, score_mod, mask_mod=mask_mod, enable_gqa=True, q_offsets=batch.offsets, page_table=batch.table, lengths=batch.lengths,
            q_start="bottom_right",
        )  # fmt: skip
        expected, _ = one_by_one(*(x.double() for x in (batch.query, *batch.pools, batch.bias)), None, batch, 4, False)
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
    assert scoremod.cache.statistics()["compiled"]["problems"] - before == 1


def draw_like(batch, seed):
    """Another batch with the heads, head dims and page size of this one, which lie as this one's."""
    choose, random = pseudo_random.Random(seed), torch.Generator().manual_seed(seed)
    count, width, page = choose.randint(1, 9), choose.randint(1, 7), batch.pools[0].shape[2]
    pages = count * width + choose.randint(0, 4)
    pools = [torch.randn(pages, page, pool.shape[1], pool.shape[3], generator=random).transpose(1, 2) for pool in batch.pools]
    pools = [pool if batch.pools[0].stride(1) < batch.pools[0].stride(2) else pool.contiguous() for pool in pools]
    queries = [choose.randint(0, 12) for _ in range(count)]
    queries[0] += 1
    offsets = torch.tensor([0, *queries]).cumsum(0).to(batch.offsets.dtype)
    lengths = torch.tensor([choose.randint(0, width * page) for _ in range(count)], dtype=batch.lengths.dtype)
    table = torch.randperm(pages, generator=random)[: count * width].reshape(count, width).to(batch.table.dtype)
    query = torch.randn(int(offsets[-1]), *batch.query.shape[1:], generator=random)
    return Batch(query, pools, offsets, table, lengths, torch.randn(count, batch.query.shape[1], generator=random), batch.sink)


@torch.fx.experimental._config.patch(use_duck_shape=False)  # sizes may be equal in the first batch by chance
def test_one_graph_serves_other_batches(seed):
    count = []

    def backend(graph, examples):
        count.append(graph)
        return graph.forward

    first = draw(seed)
    run = torch.compile(
        lambda q, k, v, offsets, table, lengths: flex_attention(
            q, k, v, q_offsets=offsets, page_table=table, lengths=lengths, mask_mod="causal_bottom_right", enable_gqa=True, max_length=16
        ),
        fullgraph=True,
        dynamic=True,
        backend=backend,
    )
    several = [each for each in (draw_like(first, seed + n) for n in range(30)) if min(len(each.lengths), each.table.shape[1], each.query.shape[0]) > 1][:6]
    for batch in several:
        given = (batch.query, *batch.pools, batch.offsets, batch.table, batch.lengths)
        q, k, v, offsets, table, lengths = given
        expected = flex_attention(q, k, v, q_offsets=offsets, page_table=table, lengths=lengths, mask_mod="causal_bottom_right", enable_gqa=True)
        torch.testing.assert_close(run(*given), expected)
    assert len(several) == 6 and len(count) == 1


def test_a_table_by_positions_is_read_where_the_queries_stand(seed):
    """A bias for each position of a query and a key: those of the whole sequence, not of the call."""
    random = torch.Generator().manual_seed(seed)
    batch = next(each for each in (draw(seed + n) for n in range(1000)) if (each.lengths >= each.offsets.diff()).all() and each.lengths.max() > 0)
    most = batch.table.shape[1] * batch.pools[0].shape[2]
    bias = torch.randn(most, most, generator=random)
    options = dict(q_offsets=batch.offsets, page_table=batch.table, lengths=batch.lengths, enable_gqa=True, mask_mod="causal_bottom_right")
    found = flex_attention(batch.query, *batch.pools, lambda s, b, h, i, j: s + bias[i, j], **options)
    for b, (first, end) in enumerate(zip(batch.offsets.tolist(), batch.offsets.tolist()[1:])):
        shift = int(batch.lengths[b]) - (end - first)
        keys, values = (batch.keys(b, pool)[None] for pool in batch.pools)
        if first < end and keys.shape[2]:
            query = batch.query[first:end].transpose(0, 1)[None]
            expected, _ = dense.attention_and_lse(query, keys, values, lambda s, b, h, i, j: s + bias[i + shift, j], lambda b, h, i, j: i + shift >= j)  # noqa: B023
            torch.testing.assert_close(found[first:end], expected[0].transpose(0, 1), rtol=1e-4, atol=1e-5)
    with pytest.raises(scoremod.InvalidArgumentError, match="indexed .* by kv_idx"):
        flex_attention(batch.query, *batch.pools, lambda s, b, h, i, j: s + bias[0, : most - 1][j], **options)


def arguments(**changed):
    random = torch.Generator().manual_seed(0)
    query, pool = torch.randn(7, 4, 8, generator=random), torch.randn(6, 2, 4, 8, generator=random)
    given = dict(
        query=query, key=pool, value=pool, enable_gqa=True, q_offsets=torch.tensor([0, 1, 7]), page_table=torch.tensor([[0, 1], [2, 3]]), lengths=torch.tensor([5, 8])
    )  # fmt: skip
    return given | changed


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (dict(page_table=torch.tensor([[0, 1], [2, 6]])), r"6"),
        (dict(page_table=torch.tensor([[0, -1], [2, 3]])), r"-1"),
        (dict(lengths=torch.tensor([-1, 8])), r"length.*-1"),
        (dict(lengths=torch.tensor([5, 9])), r"length.*9"),
        (dict(lengths=torch.tensor([5, 8, 1])), "lengths: expected a length for each of query's 2 sequences, found shape .3,."),
        (dict(lengths=None), "page_table: expected lengths of the keys beside it"),
        (dict(kv_offsets=torch.tensor([0, 5, 13])), "page_table: expected no kv_offsets beside it"),
        (dict(q_offsets=torch.tensor([0, 5, 3])), "q_offsets: expected numbers from 0 to 7"),
        (dict(q_offsets=torch.tensor([0, 5, 8])), "q_offsets: expected numbers from 0 to 7"),
        (dict(q_offsets=torch.tensor([0, 1, 4, 7])), "page_table: expected a row of blocks for each of query's 3 sequences"),
        (dict(page_table=torch.tensor([0, 1])), r"page_table: expected an int32 or int64 tensor \[batch, blocks of a sequence\]"),
        (dict(query=torch.randn(1, 4, 7, 8)), r"query: expected 3 dimensions \[tokens, heads, dim\] with q_offsets"),
        (dict(key=torch.randn(24, 2, 8)), r"key: expected 4 dimensions \[pages, heads, page size, dim\] with a page_table"),
        (dict(max_length=5), "max_length: expected at least the 6 tokens"),
        (dict(value=torch.randn(6, 2, 5, 8)), "value: expected pages of key's 4 positions, found 5"),
        (dict(enable_gqa=False), "enable_gqa=True"),
    ],
)
@pytest.mark.parametrize("has_gradient", [False, True], ids=["paged", "gathered"])
def test_what_does_not_fit_is_refused(changed, message, has_gradient):
    given = arguments(**changed)
    if has_gradient:
        given["query"] = given["query"].clone().requires_grad_()
    with pytest.raises(scoremod.InvalidArgumentError, match=message):
        flex_attention(**given)


def test_entries_beyond_a_length_may_be_anything():
    given = arguments(lengths=torch.tensor([4, 0]), page_table=torch.tensor([[5, 99], [-3, 2**31 - 1]]))
    o, lse = flex_attention(**given, return_lse=True)
    keys = given["key"][5].repeat_interleave(2, 0)[None]
    expected, _ = dense.attention_and_lse(given["query"][:1].transpose(0, 1)[None], keys, keys)
    torch.testing.assert_close(o[:1], expected[0].transpose(0, 1))
    assert torch.equal(o[1:], torch.zeros(6, 4, 8)) and lse[1:].isneginf().all()


def test_explain_has_the_fields_of_a_mixed_batch():
    given = arguments()
    found = explain(**given, mask_mod="causal_bottom_right")
    problem = found.problem
    assert problem["tokens_q"] == 7 and problem["paged"] == {"block_size": 4, "blocks": 6, "blocks_per_sequence": 2} and not problem["backward"]
    assert found.answers()["cpu"] == ()


def test_maps_over_mixed_batches_run_in_turn():
    given = arguments()
    many = torch.stack([given["query"], 2 * given["query"]])
    found = torch.vmap(lambda query: flex_attention(**given | dict(query=query)))(many)
    for x, query in zip(found, many):
        torch.testing.assert_close(x, flex_attention(**given | dict(query=query)))


def test_positions_come_from_the_lengths_that_are_given(seed):
    """Dense tensors, varlen ones and pages, with and without lengths."""
    random = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, 2, 3, 8, generator=random), torch.randn(2, 2, 7, 8, generator=random)
    for options, shift in (
        ({}, [4, 4]),
        (dict(lengths=torch.tensor([5, 2])), [2, -1]),
        (dict(lengths=(torch.tensor([2, 3]), torch.tensor([5, 2]))), [3, -1]),
        (dict(lengths=(torch.tensor([2, 3]), None)), [5, 4]),
    ):
        found = flex_attention(q, k, k, mask_mod="causal_bottom_right", **options)
        shift = torch.tensor(shift)
        expected = flex_attention(q, k, k, mask_mod=lambda b, h, i, j: i + shift[b] >= j, **options)  # noqa: B023
        torch.testing.assert_close(found, expected)
    found = flex_attention(k, q, q, mask_mod="causal_bottom_right", return_lse=True)
    assert found[1][:, :, :4].isneginf().all() and not found[1][:, :, 4:].isneginf().any()
