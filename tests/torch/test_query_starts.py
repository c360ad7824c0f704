"""q_start=: where each batch's queries begin in its sequence, in whatever way the call is made; and offsets, which come with the call."""

import itertools
import random as pseudo_random

import pytest
import torch

import scoremod
import scoremod.torch.api
from scoremod import Offsets
from scoremod.torch import eager_calls, explain, flex_attention

B, H, D = 3, 2, 8
pytestmark = pytest.mark.usefixtures("nothing_compiled")


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def by_distance(score, b, h, q_idx, kv_idx):
    return score - 0.1 * (q_idx - kv_idx) * (h + 1)


def compiled():
    return scoremod.cache.statistics()["compiled"]["problems"]


def dense(q, k, v, starts, score_mod=by_distance, mask_mod=causal):
    """The expected result: the functions of true positions, on all of the scores."""
    b, h, i, j = torch.meshgrid(*(torch.arange(n) for n in (q.shape[0], q.shape[1], q.shape[2], k.shape[2])), indexing="ij")
    i = i + (starts[:, None, None, None] if isinstance(starts, torch.Tensor) else starts)
    score = q @ k.mT / q.shape[-1] ** 0.5
    score = torch.where(mask_mod(b, h, i, j), score_mod(score, b, h, i, j), -torch.inf)
    return score.softmax(-1).nan_to_num() @ v


def tensors(random, s_q, s_kv, **options):
    return [torch.randn(B, H, n, D, generator=random, **options) for n in (s_q, s_kv, s_kv)]


@pytest.mark.parametrize("road", ["eager", "compiled", "vmap"])
@pytest.mark.parametrize("kind", ["int", "int64", "int32"])
def test_positions_are_those_of_the_sequence(road, kind, random):
    torch._dynamo.reset()
    q, k, v = tensors(random, 4, 19)
    for start in (15, 0, 7):
        starts = start if kind == "int" else torch.tensor([start, 15, 3], dtype=getattr(torch, kind))

        def run(q, k, v):
            return flex_attention(q, k, v, by_distance, mask_mod=causal, q_start=starts)  # noqa: B023

        if road == "compiled":
            run = torch.compile(run, backend="aot_eager")
        found = torch.vmap(run)(q[None], k[None], v[None])[0] if road == "vmap" else run(q, k, v)
        torch.testing.assert_close(found, dense(q, k, v, starts))


def test_a_number_compiles_once_for_all_of_its_values(random):
    q, k, v = tensors(random, 1, 40)
    before = compiled()
    for start in (0, 1, 39, 17, 0, 5, 38):
        torch.testing.assert_close(flex_attention(q, k, v, by_distance, mask_mod=causal, q_start=start), dense(q, k, v, start))
    assert compiled() - before == 1 and len(eager_calls._kept) == 1


def test_offsets_compile_once_for_all_of_their_values(random):
    q, k, v = tensors(random, 2, 9)
    slopes = torch.randn(B + 4, 8, generator=random)
    before = compiled()

    def score_mod(score, b, h, q_idx, kv_idx):
        return score + slopes[b, h] * (kv_idx - q_idx)

    for offsets in (Offsets(1, 2, 3, 4), Offsets(0, 6, 7, 0), Offsets(4, 0, 0, 1), Offsets(query=3)):
        found = flex_attention(q, k, v, score_mod, mask_mod=lambda b, h, i, j: i + 2 >= j, offsets=offsets)

        def shifted(score, b, h, i, j):
            return score + slopes[b + offsets.batch, h + offsets.head] * (j + offsets.key - i)  # noqa: B023

        expected = dense(q, k, v, offsets.query, shifted, lambda b, h, i, j: i + 2 >= j + offsets.key)  # noqa: B023
        torch.testing.assert_close(found, expected)
    assert compiled() - before == 1


def test_captured_tensors_follow_the_positions(random):
    """A tensor that is read along q_idx is cut anew at each call, and is refused where it is too short."""
    q, k, v = tensors(random, 2, 9)
    bias, ids = torch.randn(H, 11, generator=random), torch.randint(0, 3, (B, 11), generator=random)
    learned = torch.randn(H, 11, generator=random).requires_grad_()

    def score_mod(score, b, h, q_idx, kv_idx):
        return score + bias[h, q_idx] + ids[b, q_idx] * kv_idx + learned[h, q_idx] * kv_idx

    before = compiled()
    for start in (0, 3, 9, 1):
        found = flex_attention(q, k, v, score_mod, mask_mod=causal, q_start=start)
        expected = dense(q, k, v, start, score_mod)
        torch.testing.assert_close(found, expected)
        (gradient,) = torch.autograd.grad(found.square().sum(), learned)
        torch.testing.assert_close(gradient, torch.autograd.grad(expected.square().sum(), learned)[0], rtol=1e-4, atol=1e-4)
        assert gradient.abs().sum() > 0 or start == 0
    with pytest.raises(scoremod.InvalidArgumentError, match="indexed .* by q_idx: expected a size of 12 along dimension 1"):
        flex_attention(q, k, v, score_mod, mask_mod=causal, q_start=10)
    assert compiled() - before == 1
    torch.testing.assert_close(flex_attention(q, k, v, score_mod, mask_mod=causal, q_start=4), dense(q, k, v, 4, score_mod))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int16, torch.float64, torch.int32, torch.float32])
@pytest.mark.parametrize("gradients", [False, True])
def test_longer_tensors_of_any_dtype_follow_the_positions(gradients, dtype, random):
    """A program has some dtypes alone, so that the part of a tensor that a call reads may be a copy, which lies otherwise than the tensor."""
    q, k, v = tensors(random, 2, 9, requires_grad=gradients)
    numbers = [torch.randint(-3, 3, size, generator=random).float() for size in ((B, 31), (31, H))]

    def read(of_keys, of_queries):
        return lambda score, b, h, q_idx, kv_idx: score + of_keys[b, kv_idx] - 0.5 * of_queries[q_idx, h]

    score_mod, before = read(*(each.to(dtype) for each in numbers)), compiled()
    for start in (3, 0, 29, 3):
        found, expected = flex_attention(q, k, v, score_mod, q_start=start), dense(q, k, v, start, read(*numbers), lambda b, h, i, j: j >= 0)
        torch.testing.assert_close(found, expected)
        if gradients:
            for one, other in zip(*(torch.autograd.grad(each.square().sum(), (q, k, v)) for each in (found, expected)), strict=True):
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert compiled() - before == 1


def test_integers_are_held_to_int32_at_each_position(random):
    q, k, v = tensors(random, 1, 5)
    ids = torch.full((B,), 2**31 - 10)
    run = lambda start: flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: torch.where(ids[b] + q_idx > 0, score, 0.0), q_start=start)  # noqa: E731
    for start in (3, 9):
        torch.testing.assert_close(run(start), flex_attention(q, k, v))
    with pytest.raises(scoremod.InvalidArgumentError, match="expected integers from -2147483627 to 2147483627"):
        run(20)
    run(9)


def test_gradients_are_those_of_the_positions(random):
    for start in (3, torch.tensor([1, 5, 2]), 6):
        leaves = tensors(random, 4, 11, requires_grad=True)
        found, lse = flex_attention(*leaves, by_distance, mask_mod=causal, q_start=start, return_lse=True)
        expected = dense(*leaves, start)
        for one, other in zip(
            torch.autograd.grad(found.square().sum(), leaves, retain_graph=True), torch.autograd.grad(expected.square().sum(), leaves), strict=True
        ):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        assert any(each.abs().sum() > 0 for each in torch.autograd.grad(lse.sum(), leaves[:2]))  # by the operators


def test_continuous_batching(random, seed):
    """Steps of several sequences in one call: each batch has its own number of keys, and its queries are the last of them."""
    choose = pseudo_random.Random(seed)
    k, v = (torch.randn(B, H, 32, D, generator=random) for _ in range(2))
    for _ in range(12):
        queries = choose.choice([1, 2, 4])
        q, cached = torch.randn(B, H, queries, D, generator=random), torch.tensor([choose.randint(queries, 32) for _ in range(B)])
        found = flex_attention(q, k, v, by_distance, mask_mod=causal, lengths=cached, q_start=cached - queries)
        torch.testing.assert_close(found, dense(q, k, v, cached - queries))


def test_lengths_of_queries_are_counted_from_the_first(random):
    q, k, v = tensors(random, 4, 12)
    of_queries, of_keys = torch.tensor([4, 0, 2]), torch.tensor([12, 5, 7])
    for start in (6, torch.tensor([6, 6, 6])):
        found = flex_attention(q, k, v, mask_mod=causal, lengths=(of_queries, of_keys), q_start=start)
        inside = lambda b, h, i, j: (i - 6 < of_queries[b]) & (j < of_keys[b]) & (i >= j)  # noqa: E731
        torch.testing.assert_close(found, dense(q, k, v, 6, lambda score, *_: score, inside))


@pytest.mark.parametrize("start", [9, torch.tensor([9, 2])], ids=["number", "tensor"])
def test_sequences_and_pages(start, random):
    q, k, v = torch.randn(5, H, D, generator=random), *torch.randn(2, 18, H, D, generator=random)
    ends, ends_kv = torch.tensor([0, 2, 5]), torch.tensor([0, 11, 18])
    found = flex_attention(q, k, v, by_distance, mask_mod=causal, q_offsets=ends, kv_offsets=ends_kv, q_start=start)
    for b in range(2):
        of_queries, of_keys = slice(ends[b], ends[b + 1]), slice(ends_kv[b], ends_kv[b + 1])
        parts = [x[of].transpose(0, 1)[None] for x, of in ((q, of_queries), (k, of_keys), (v, of_keys))]
        expected = dense(*parts, start if isinstance(start, int) else int(start[b]))
        torch.testing.assert_close(found[of_queries].transpose(0, 1)[None], expected)

    pools = torch.randn(2, 6, H, 4, D, generator=random)
    table, cached = torch.tensor([[0, 3, 5], [1, 4, 2]]), torch.tensor([11, 6])
    query = torch.randn(2, H, 2, D, generator=random)
    with torch.no_grad():
        found = flex_attention(query, *pools, by_distance, mask_mod=causal, page_table=table, lengths=cached, q_start=start)
    whole = [pool[table].transpose(1, 2).flatten(2, 3) for pool in pools]
    expected = dense(query, *whole, start, mask_mod=lambda b, h, i, j: (i >= j) & (j < cached[b]))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"q_start": -1}, "q_start: expected a 32-bit integer from 0 on, .* found -1"),
        ({"q_start": 2**31}, "q_start: expected a 32-bit integer from 0 on, .* found 2147483648"),
        ({"q_start": 1.5}, r"q_start: expected a 32-bit integer from 0 on, integers of shape \(3,\), one for each batch"),
        ({"q_start": True}, r"q_start: expected a 32-bit integer from 0 on, integers of shape \(3,\), one for each batch"),
        ({"q_start": torch.tensor(3)}, r"q_start: expected a 32-bit integer from 0 on, integers of shape \(3,\), one for each batch"),
        ({"q_start": torch.tensor([1.0, 2.0, 3.0])}, "q_start: expected an int32 or int64 tensor"),
        ({"q_start": torch.tensor([1, 2])}, "q_start: expected one for each of 3 batches, found shape"),
        ({"q_start": torch.tensor([1, -2, 0])}, "q_start: expected indices from 0, found -2 of batch 1"),
        ({"q_start": 3, "offsets": Offsets(query=2)}, "q_start: expected no offsets.query beside it"),
        ({"q_start": torch.tensor([1, 2, 3]), "offsets": Offsets(query=2)}, "q_start: expected no offsets.query beside it"),
    ],
)
def test_what_is_wrong_is_refused(options, message, random):
    for _ in range(2):
        with pytest.raises(scoremod.InvalidArgumentError, match=message):
            flex_attention(*tensors(random, 2, 5), mask_mod=causal, **options)


def test_more_entries_than_heads_stay_refused(random):
    slopes = torch.randn(H + 1, generator=random)
    with pytest.raises(scoremod.InvalidArgumentError, match="indexed .* by h: expected a size of 2"):
        flex_attention(*tensors(random, 2, 5), lambda score, b, h, q_idx, kv_idx: score * slopes[h], q_start=3)


def test_a_step_of_decoding_has_no_mask():
    """The only query of a sequence sees all of its keys, so that no mask is evaluated and no position is computed. With score functions positions stay."""
    pages, table, lengths = torch.randn(6, 2, 4, 8), torch.tensor([[1, 5], [0, 2]]), torch.tensor([7, 3])
    one, two = torch.randn(2, 2, 1, 8), torch.randn(2, 2, 2, 8)
    options = {"page_table": table, "lengths": lengths}

    def kinds(query, score_mod=None, mask_mod="causal_bottom_right", **options):
        return str(explain(query, pages, pages, score_mod, mask_mod=mask_mod, **options))

    assert "mask: padding" in kinds(one, **options)
    assert "mask: general" in kinds(two, **options)
    # A function of the user's is what it says.
    assert "mask: general" in kinds(one, mask_mod=lambda b, h, q, kv: q >= kv, q_start="bottom_right", **options)

    def slope(score, b, h, q, kv):
        return score + 0.1 * (kv - q)

    for query, score_mod in itertools.product((one, two), (None, slope)):
        found = flex_attention(query, pages, pages, score_mod, mask_mod="causal_bottom_right", **options)
        expected = flex_attention(query, pages, pages, score_mod, mask_mod=lambda b, h, q, kv: q >= kv, q_start="bottom_right", **options)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("queries", [1, 2])
def test_a_step_by_the_masks_name_is_a_call_without_functions(queries, monkeypatch):
    """So it is made as repeated calls are, in a third of the time."""
    q, k, v = (torch.randn(2, 2, rows, 8) for rows in (queries, 9, 9))
    expected = flex_attention(q, k, v, mask_mod=lambda b, h, i, j: i + 9 - queries >= j)
    asked = []
    started = scoremod.torch.api.started
    monkeypatch.setattr("scoremod.torch.api.started", lambda *arguments: asked.append(arguments) or started(*arguments))
    torch.testing.assert_close(flex_attention(q, k, v, mask_mod="causal_bottom_right"), expected)
    assert len(asked) == (queries > 1)
    with pytest.raises(scoremod.InvalidArgumentError, match="expected no offsets beside it"):
        flex_attention(q, k, v, mask_mod="causal_bottom_right", offsets=scoremod.Offsets(query=1))
