"""Sequences one after the other, pages and sinks as fields of the problem: against dense attention to each sequence by itself."""

import dense_reference as dense
import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import scoremod
from scoremod.torch import api, attention_ops, eager_calls, explain, flex_attention, parts, repeated_calls
from scoremod.torch.call import RAGGED, Call, call_of

HEADS, HEADS_KV, DIM, TOKENS, KEY_TOKENS = 4, 2, 16, 40, 48
GAPS = ([2, 10, 10, 31, 36], [1, 9, 20, 40, 44])  # tokens before and after
WHOLE = ([0, 10, 10, 31, 40], [0, 9, 20, 40, 48])
NAMES = ("o", "lse", "query", "key", "value", "bias", "positions", "sink")


@pytest.fixture(autouse=True)
def afresh(monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setattr(eager_calls, "_kept", {})


@pytest.fixture
def calls(monkeypatch):
    """The Call of each problem that is compiled."""
    from scoremod.torch import execution

    made, compiled = [], execution.CompiledProblem

    def seen(attention, sizes, call, *rest):
        made.append(call)
        return compiled(attention, sizes, call, *rest)

    monkeypatch.setattr(execution, "CompiledProblem", seen)
    monkeypatch.setattr(execution, "_kept", {})
    return made


def tensors(random):
    shapes = (TOKENS, HEADS, DIM), (KEY_TOKENS, HEADS_KV, DIM), (KEY_TOKENS, HEADS_KV, DIM), (4, HEADS), (24,), (HEADS,)
    return [torch.randn(shape, generator=random) for shape in shapes]


def functions(bias, positions):
    def score_mod(s, b, h, q_idx, kv_idx):
        return s * bias[b, h] + positions[torch.clamp(kv_idx - q_idx + 12, 0, 23)]

    return score_mod, lambda b, h, i, j: j <= i + 3


def attend(q, k, v, bias, positions, sink, offsets, **options):
    score_mod, mask_mod = functions(bias, positions)
    places = dict(zip(("q_offsets", "kv_offsets"), map(torch.tensor, offsets)))
    return flex_attention(q, k, v, score_mod, mask_mod=mask_mod, enable_gqa=True, sink=sink, return_lse=True, **places, **options)


def one_by_one(q, k, v, bias, positions, sink, offsets):
    """(o, lse) of dense attention to each sequence."""
    o, lse = torch.zeros_like(q[..., : v.shape[-1]]), torch.full(q.shape[:2], -torch.inf, dtype=torch.promote_types(q.dtype, torch.float32))
    ends = [list(zip(each, each[1:])) for each in offsets]
    for b, ((first, end), (first_key, end_key)) in enumerate(zip(*ends)):
        if first == end:
            continue
        score_mod, mask_mod = functions(bias[b : b + 1], positions)
        parts = q[first:end], k[first_key:end_key], v[first_key:end_key]
        o_b, lse_b = dense.attention_and_lse(*(x.transpose(0, 1)[None] for x in parts), score_mod, mask_mod)
        share = torch.sigmoid(lse_b - sink[:, None])
        o = torch.cat([o[:first], (o_b * share[..., None])[0].transpose(0, 1).to(o.dtype), o[end:]])
        lse = torch.cat([lse[:first], torch.logaddexp(lse_b, sink[:, None])[0].T, lse[end:]])
    return o, lse


@pytest.mark.parametrize("offsets", [GAPS, WHOLE], ids=["gaps", "whole"])
@pytest.mark.parametrize("road", ["eager", "operator", "compiled"])
def test_sequences_with_a_sink_and_all_gradients(offsets, road, random, calls, monkeypatch):
    given = tensors(random)
    weights = [torch.randn(TOKENS, HEADS, DIM, generator=random), torch.randn(TOKENS, HEADS, generator=random)]
    run = attend
    if road == "operator":
        monkeypatch.setattr(api, "is_plain", lambda *tensors: False)
        monkeypatch.setattr(api, "repeated", lambda *request: None)
    if road == "compiled":
        run = torch.compile(attend, fullgraph=True, backend="aot_eager")
    found = dense.results(lambda *x: run(*x, offsets), given, weights)
    plain = dense.results(lambda *x: one_by_one(*x, offsets), given, weights)
    truth = dense.results(lambda *x: one_by_one(*x, offsets), dense.widened(given), dense.widened(weights))
    dense.assert_close(found, plain, truth, NAMES)
    assert calls and all(call.is_ragged and call.sink and call.bound() == ("offsets_q", "offsets_kv", "sink") for call in calls)
    # Faults would be seen: another sequence's tokens, a sink for another head.
    for other in ((*given, (offsets[0], [offsets[1][0], offsets[1][1] + 1, *offsets[1][2:]])), (*given[:5], given[5].roll(1), offsets)):
        with pytest.raises(AssertionError):
            dense.assert_close([attend(*other)[0]], plain[:1], truth[:1])


@pytest.mark.parametrize("sink", [True, False], ids=["sink", "no_sink"])
@pytest.mark.parametrize(
    ("tokens", "key_tokens", "offsets"),
    [
        (TOKENS, 0, (WHOLE[0], [0] * 5)),
        (TOKENS, KEY_TOKENS, (GAPS[0], [7] * 5)),
        (0, KEY_TOKENS, ([0] * 5, WHOLE[1])),
        (TOKENS, KEY_TOKENS, ([TOKENS] * 5, GAPS[1])),
        (0, 0, ([0] * 5, [0] * 5)),
    ],
    ids=["no_keys", "keys_of_none", "no_queries", "queries_of_none", "nothing"],
)
def test_no_queries_or_no_keys(tokens, key_tokens, offsets, sink, random):
    q, k, v, *captured = tensors(random)
    attend(q, k, v, *captured, WHOLE)  # what is kept of a call with tokens must not serve one without
    given = [each.requires_grad_() for each in (q[:tokens].clone(), k[:key_tokens].clone(), v[:key_tokens].clone(), *captured)]
    o, lse = attend(*given[:5], given[5] if sink else None, offsets)
    assert o.shape == (tokens, HEADS, DIM) and not o.any()
    first, end = offsets[0][0], offsets[0][-1]
    expected = torch.full((tokens, HEADS), -torch.inf)
    if sink:
        expected[first:end] = given[5].detach()
    torch.testing.assert_close(lse, expected)
    weights = torch.randn(lse.shape, generator=random)
    (o.sum() + (weights * torch.where(lse.isinf(), 0, lse)).sum()).backward()
    assert not any(each.grad.any() for each in given[: 5 if sink else 6] if each.grad is not None)
    if sink:
        torch.testing.assert_close(given[5].grad, weights[first:end].sum(0))


def test_a_mixed_batch_without_queries(random):
    q, k, v = pools(random)
    q = q.transpose(1, 2).flatten(0, 1)[:0]
    o, lse = flex_attention(q, k, v, enable_gqa=True, q_offsets=torch.tensor([0] * (len(CACHED) + 1)), page_table=TABLE, lengths=CACHED, return_lse=True)
    assert o.shape == q.shape and lse.shape == q.shape[:2]


def test_lse_without_a_sink_and_largest_scores(random):
    q, k, v, bias, positions, _ = tensors(random)
    given = [q, k, v, bias, positions]
    weights = [torch.randn(TOKENS, HEADS, DIM, generator=random), torch.randn(TOKENS, HEADS, generator=random)]
    none = lambda x: torch.full((HEADS,), -torch.inf, dtype=x.dtype)  # noqa: E731
    for offsets in (GAPS, WHOLE):
        found = dense.results(lambda *x: attend(*x, None, offsets), given, weights)  # noqa: B023
        plain = dense.results(lambda *x: one_by_one(*x, none(x[0]), offsets), given, weights)  # noqa: B023
        truth = dense.results(lambda *x: one_by_one(*x, none(x[0]), offsets), dense.widened(given), dense.widened(weights))  # noqa: B023
        dense.assert_close(found, plain, truth, NAMES)
    from torch.nn.attention.flex_attention import AuxRequest

    largest = flex_attention(
        q, k, v, enable_gqa=True, q_offsets=torch.tensor(GAPS[0]), kv_offsets=torch.tensor(GAPS[1]), return_aux=AuxRequest(max_scores=True)
    )[1]
    scores = torch.einsum("qhd,khd->hqk", q[2:10], k[1:9].repeat_interleave(2, 1)) / DIM**0.5
    torch.testing.assert_close(largest.max_scores[2:10].T, scores.amax(-1))
    assert largest.max_scores[[0, 1, 36, 39]].isneginf().all()


def test_one_compiled_graph_serves_other_offsets_and_token_counts(random):
    q, k, v, bias, positions, sink = tensors(random)
    count = []

    def backend(graph, examples):
        count.append(graph)
        return graph.forward

    run = torch.compile(
        lambda q, k, v, offsets: flex_attention(q, k, v, enable_gqa=True, q_offsets=offsets, max_length=32), fullgraph=True, dynamic=True, backend=backend
    )
    for tokens, offsets in ((40, [0, 10, 40]), (36, [0, 7, 30]), (24, [0, 1, 24])):
        offsets = torch.tensor(offsets)
        given = [x[:tokens].clone() for x in (q, k, v)]
        torch.testing.assert_close(run(*given, offsets), flex_attention(*given, enable_gqa=True, q_offsets=offsets))
    assert len(count) == 1


def test_one_sequence_is_plain_attention(random):
    q, k, v, *_ = tensors(random)
    slopes = torch.randn(HEADS, generator=random)
    score_mod = lambda s, b, h, i, j: s + slopes[h] * (j - i)  # noqa: E731
    expected = flex_attention(*(x.transpose(0, 1)[None] for x in (q, k[:TOKENS], v[:TOKENS])), score_mod, enable_gqa=True)
    found = flex_attention(q, k[:TOKENS], v[:TOKENS], score_mod, enable_gqa=True, q_offsets=torch.tensor([0, TOKENS], dtype=torch.int32))
    torch.testing.assert_close(found, expected[0].transpose(0, 1))


def test_tensors_that_are_read_by_positions_may_be_as_short_as_the_longest_sequence(random):
    """The most tokens that a sequence is taken to have are rounded up."""
    q, k, v, *_ = tensors(random)
    offsets = torch.tensor([0, 21, TOKENS])
    bias = torch.randn(2, 21, 21, generator=random, requires_grad=True)
    o = flex_attention(q, k[:TOKENS], v[:TOKENS], lambda s, b, h, i, j: s + bias[b, i, j], enable_gqa=True, q_offsets=offsets)
    parts = [x[21:].transpose(0, 1)[None] for x in (q, k[:TOKENS], v[:TOKENS])]
    expected, _ = dense.attention_and_lse(*parts, lambda s, b, h, i, j: s + bias[1, i, j])
    torch.testing.assert_close(o[21:], expected[0].transpose(0, 1))
    (found,) = torch.autograd.grad(o[21:].square().sum(), bias)
    torch.testing.assert_close(found, torch.autograd.grad(expected.square().sum(), bias)[0])


def test_lengths_and_dropout_of_sequences(random):
    q, k, v, *_ = tensors(random)
    offsets, lengths = torch.tensor([0, 10, TOKENS]), torch.tensor([4, 22])
    options = dict(enable_gqa=True, q_offsets=offsets)
    found = flex_attention(q, k[:TOKENS], v[:TOKENS], lengths=lengths, **options)
    for first, end, length in ((0, 10, 4), (10, TOKENS, 22)):
        expected, _ = dense.attention_and_lse(*(x[first : first + n].transpose(0, 1)[None] for x, n in ((q, end - first), (k, length), (v, length))))
        torch.testing.assert_close(found[first:end], expected[0].transpose(0, 1))
    # Dropout follows from positions: a sequence among packed ones drops the same weights as one of a padded batch.
    torch.manual_seed(3)
    dropped = flex_attention(q, k[:TOKENS], v[:TOKENS], dropout_p=0.5, **options)
    padded = [torch.zeros(2, HEADS if x is q else HEADS_KV, 30, DIM) for x in (q, k, v)]
    for x, y in zip(padded, (q, k, v)):
        x[0, :, :10], x[1] = y[:10].transpose(0, 1), y[10:TOKENS].transpose(0, 1)
    torch.manual_seed(3)
    expected = flex_attention(*padded, dropout_p=0.5, lengths=torch.tensor([10, 30]), enable_gqa=True)
    torch.testing.assert_close(dropped, torch.cat([expected[0, :, :10].transpose(0, 1), expected[1].transpose(0, 1)]))


def test_the_operators_with_sequences_pass_opcheck(random):
    q, k, v, _, _, sink = (x.requires_grad_() for x in tensors(random))
    offsets = tuple(torch.tensor(each, dtype=torch.int32) for each in GAPS)
    captured = {}

    def seen(*arguments):
        captured["arguments"] = arguments
        return torch.ops.scoremod.attention_forward(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "attention", seen)
        flex_attention(q, k, v, enable_gqa=True, q_offsets=offsets[0], kv_offsets=offsets[1], sink=sink, return_lse=True)
    arguments = captured["arguments"]
    torch.library.opcheck(torch.ops.scoremod.attention_forward.default, arguments)
    q, k, v, operands, _, wanted, _, _, call = arguments
    assert wanted == [2] and call_of(call).names() == ("offsets_q", "offsets_kv", "sink")
    q, k, v, *operands = (x.detach() for x in (q, k, v, *operands))
    o, lse, *_ = torch.ops.scoremod.attention_forward(q, k, v, operands, None, wanted, True, True, call)
    backward = torch.ops.scoremod.attention_backward.default
    torch.library.opcheck(backward, (q, k, v, o, lse, torch.randn(o.shape, generator=random), operands, None, wanted, call))


def test_vmap_is_a_loop(random):
    q, k, v, bias, positions, sink = tensors(random)
    many, sinks = torch.stack([q, 2 * q, 3 * q]), torch.stack([sink, -sink, 2 * sink])

    def gradients(q, sink):
        loss = lambda *x: attend(x[0], k, v, bias, positions, x[1], GAPS)[0].square().sum()  # noqa: E731
        return torch.func.grad(loss, argnums=(0, 1))(q, sink)

    for dims in ((0, None), (0, 0)):
        found = torch.vmap(gradients, dims)(many, sink if dims[1] is None else sinks)
        for n in range(3):
            expected = gradients(many[n], sink if dims[1] is None else sinks[n])
            for x, y in zip(found, expected):
                torch.testing.assert_close(x[n], y)


BLOCKS, BLOCK = 11, 4
TABLE = torch.tensor([[9, 2, 5, -1], [77, -7, 0, 0], [10, 3, 99, -1]])
CACHED = torch.tensor([9, 0, 6])


def decode(q, pool_k, pool_v, cap=3.0, **options):
    score_mod = lambda s, b, h, i, j: cap * torch.tanh(s) + 0.1 * b  # noqa: E731
    mask_mod = lambda b, h, i, j: j <= i + 6  # noqa: E731
    return flex_attention(q, pool_k, pool_v, score_mod, mask_mod=mask_mod, page_table=TABLE, lengths=CACHED, enable_gqa=True, return_lse=True, **options)


def pools(random):
    """Blocks lie [block, position, head, dim], as caches have them; some hold NaN."""
    q = torch.randn(3, HEADS, 5, DIM, generator=random)
    pools = [torch.randn(BLOCKS, BLOCK, HEADS_KV, DIM, generator=random) for _ in range(2)]
    for pool in pools:
        pool[0] = torch.nan
    return q, *(pool.transpose(1, 2) for pool in pools)


def gathered(q, k, v, cap=3.0, sink=None):
    """Dense attention to gathered keys."""
    o, lse = [], []
    for b, length in enumerate(CACHED.tolist()):
        blocks = [int(n) for n in TABLE[b, : -(-length // BLOCK)]]
        k_b, v_b = (torch.cat([pool[n] for n in blocks], 1)[None, :, :length] if blocks else pool.new_zeros(1, HEADS_KV, 1, DIM) for pool in (k, v))
        mask = lambda _, h, i, j: (j <= i + 6) & (j < length)  # noqa: E731, B023
        o_b, lse_b = dense.attention_and_lse(q[b : b + 1], k_b, v_b, lambda s, _, h, i, j: cap * torch.tanh(s) + 0.1 * b, mask)  # noqa: B023
        if sink is not None:
            o_b, lse_b = (o_b * torch.sigmoid(lse_b - sink[:, None])[..., None]).to(o_b.dtype), torch.logaddexp(lse_b, sink[:, None])
        o.append(o_b)
        lse.append(lse_b)
    return torch.cat(o), torch.cat(lse)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_pages_are_read_where_they_lie_and_gathered_for_gradients(compiled, random, calls):
    given = pools(random)
    sink = torch.randn(HEADS, generator=random)
    run = torch.compile(decode, fullgraph=True, backend="aot_eager") if compiled else decode
    for options in ({}, {"sink": sink}):
        with torch.no_grad():
            found, plain, truth = run(*given, **options), gathered(*given, **options), gathered(*dense.widened(given), **options)
        dense.assert_close(found, plain, truth)
    assert [call.place for call in calls] == ["paged", "paged"] and calls[1].bound() == ("page_table_k", "page_table_v", "lengths_kv", "sink")
    # The blocks of NaN are nobody's.
    weights = [torch.randn(3, HEADS, 5, DIM, generator=random), torch.randn(3, HEADS, 5, generator=random)]
    given = [*given, sink]
    found, plain = (dense.results(lambda *x: f(*x[:3], sink=x[3]), given, weights) for f in (run, gathered))  # noqa: B023
    dense.assert_close(found, plain, dense.results(lambda *x: gathered(*x[:3], sink=x[3]), dense.widened(given), dense.widened(weights)))
    assert calls[-1].place is None and calls[-1].lengths


def test_pages_with_a_learned_operand_are_gathered(random):
    q, k, v = pools(random)
    cap, expected_cap = (torch.tensor(3.0, requires_grad=True) for _ in range(2))
    decode(q, k, v, cap)[0].square().sum().backward()
    gathered(q, k, v, expected_cap)[0].square().sum().backward()
    torch.testing.assert_close(cap.grad, expected_cap.grad, rtol=1e-4, atol=1e-5)


def test_a_sink_is_a_field_where_a_backend_takes_it_and_applied_afterwards_elsewhere(random, calls, monkeypatch):
    q, k, v = (torch.randn(2, HEADS, 9, DIM, generator=random, requires_grad=True) for _ in range(3))
    sink = torch.randn(HEADS, generator=random, requires_grad=True)

    def gradients():
        o, lse = flex_attention(q, k, v, sink=sink, return_lse=True)
        return [o, lse, *torch.autograd.grad(o.square().sum() + lse.sum(), (q, k, v, sink))]

    by_field = gradients()
    monkeypatch.setattr(parts, "_runs", lambda *_: False)
    monkeypatch.setattr(eager_calls, "_kept", {})
    repeated_calls._sites.clear()
    afterwards = gradients()
    assert [call.sink for call in calls] == [True, True, False, False]
    for x, y in zip(by_field, afterwards):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


def test_explain_names_the_fields(random):
    q, k, v, *_, sink = tensors(random)
    found = explain(q, k, v, enable_gqa=True, q_offsets=torch.tensor(WHOLE[0]), kv_offsets=torch.tensor(WHOLE[1]), sink=sink)
    assert found.problem["tokens_q"] == TOKENS and found.problem["tokens_kv"] == KEY_TOKENS and found.problem["sink"] == "learned"
    assert found.answers()["cpu"] == ()
    found = explain(*pools(random), enable_gqa=True, page_table=TABLE, lengths=CACHED)
    assert found.problem["paged"] == {"block_size": BLOCK, "blocks": BLOCKS, "blocks_per_sequence": 4} and found.backend == "cpu"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": 3}, "max_length: expected at least the 21 tokens of the longest sequence of q_offsets, found 3"),
        ({"max_length": 0}, "max_length: expected a 32-bit integer of at least 1, found 0; it is the most tokens"),
        ({"max_length": (24, 32, 1)}, "max_length: expected a number, or a pair"),
        ({"max_length": 24.0}, "max_length: expected a 32-bit integer"),
        ({"sink": torch.zeros(3)}, r"sink: expected a float tensor of shape \(4,\)"),
        ({"q_offsets": [0, 10, 10, 31, 41]}, "q_offsets: expected numbers from 0 to 40, the tokens"),
        ({"q_offsets": [0, 10, 9, 31, 40]}, "that do not descend; found"),
        ({"q_offsets": [-1, 10, 10, 31, 40]}, "q_offsets: expected numbers from 0"),
        ({"q_offsets": [0, 40]}, "kv_offsets: expected as many as q_offsets, 2, found 5"),
        ({"q_offsets": [0]}, "q_offsets: expected at least 2 numbers"),
        ({"q_offsets": [0.0, 40.0]}, "q_offsets: expected an int32 or int64 tensor"),
        ({"offsets": scoremod.Offsets(query=3)}, "offset"),
    ],
)
def test_mistakes(options, message, random):
    q, k, v, *_, sink = tensors(random)
    given = {"sink": sink, "q_offsets": WHOLE[0], "kv_offsets": WHOLE[1], **options}
    given |= {name: torch.tensor(given[name]) for name in ("q_offsets", "kv_offsets")}
    with pytest.raises(scoremod.InvalidArgumentError, match=message):
        flex_attention(q, k, v, enable_gqa=True, **given)


def test_mistakes_of_what_belongs_together(random):
    q, k, v, *_ = tensors(random)
    offsets, pages = torch.tensor(WHOLE[0]), pools(random)
    wrong = [
        (lambda: flex_attention(q, k, v, kv_offsets=offsets), "kv_offsets: expected q_offsets beside them"),
        (lambda: flex_attention(*pages, max_length=8), "max_length: expected q_offsets beside it"),
        (lambda: flex_attention(*pages, q_offsets=offsets), r"query: expected 3 dimensions \[tokens, heads, dim\]"),
        (lambda: flex_attention(q, k, v, q_offsets=offsets, page_table=TABLE), r"key: expected 4 dimensions \[pages, heads, page size, dim\]"),
        (lambda: flex_attention(*pages, page_table=TABLE), "page_table: expected lengths of the keys"),
        (lambda: flex_attention(*pages, page_table=TABLE[:2], lengths=CACHED), "page_table: expected a row of blocks for each of query's 3 batches"),
        (lambda: flex_attention(*pages, page_table=TABLE, lengths=CACHED[:2]), "lengths: expected a length for each of query's 3 batches"),
        (lambda: flex_attention(*pages, page_table=TABLE, lengths=CACHED + 20, enable_gqa=True), "lengths from 0 to 16"),
        (lambda: flex_attention(*pages, page_table=TABLE, lengths=CACHED + 4, enable_gqa=True), "expected blocks from 0 to 10"),
        (lambda: flex_attention(q, k, v, q_offsets=offsets.to("meta")), "on cpu, where query is; found torch.int64 of shape"),
        (lambda: flex_attention(q, k[:, :, :8], v, q_offsets=offsets, enable_gqa=True), "key: expected the head dim of query"),
    ]
    for call, message in wrong:
        with pytest.raises(scoremod.InvalidArgumentError, match=message):
            call()


ROADS = ("eager", "gradients", "compiled", "compiled gradients", "vmap")


def refused(road, run, *tensors):
    """Calls run(*tensors), the first with a gradient where the road says so."""
    torch._dynamo.reset()
    first = tensors[0].clone().requires_grad_("gradients" in road)
    if "compiled" in road:
        run = torch.compile(run, fullgraph=True, backend="aot_eager")
    if road == "vmap":
        run, many = torch.vmap(run, (0, *[None] * (len(tensors) - 1))), torch.stack([first, first])
        return run(many, *tensors[1:])
    return run(first, *tensors[1:])


@pytest.mark.parametrize("road", ROADS)
def test_lengths_out_of_range_are_refused(road, random):
    q, k, v = (torch.randn(2, 2, size, DIM, generator=random) for size in (5, 64, 64))
    keys = lambda q, lengths: flex_attention(q, k, v, lengths=lengths)  # noqa: E731
    queries = lambda q, lengths: flex_attention(q, k, v, lengths=(lengths, None))  # noqa: E731
    sequences = lambda q, lengths: flex_attention(q, k[0, 0, :9, None], v[0, 0, :9, None], q_offsets=torch.tensor([0, 6, 9]), lengths=lengths)  # noqa: E731
    shard = lambda q, lengths: flex_attention(q, k, v, lengths=lengths, offsets=scoremod.Offsets(key=64))  # noqa: E731
    flat = torch.randn(9, 1, DIM, generator=random)
    for run, query, most, of in ((keys, q, 64, "keys"), (queries, q, 5, "queries"), (sequences, flat, 9 if "compiled" in road else 6, "keys")):
        refused(road, run, query, torch.tensor([most, 0]))
        for wrong in ([3, most + 1], [-3, most]):
            found = next(each for each in wrong if not 0 <= each <= most)
            with pytest.raises(scoremod.InvalidArgumentError, match=f"lengths of {of} from 0 to {most}, how many there are, found {found} of batch"):
                refused(road, run, query, torch.tensor(wrong))
    refused(road, shard, q, torch.tensor([70, 128]))  # the whole sequence's
    with pytest.raises(scoremod.InvalidArgumentError, match="lengths of keys from 0, found -1 of batch 1"):
        refused(road, shard, q, torch.tensor([70, -1]))


@pytest.mark.parametrize("road", ROADS)
def test_pages_and_offsets_out_of_range_are_refused(road, random):
    q, k, v = pools(random)
    paged = lambda q, table, lengths: flex_attention(q, k, v, page_table=table, lengths=lengths, enable_gqa=True)  # noqa: E731
    refused(road, paged, q, TABLE, CACHED)  # whose last blocks are none of the pool
    for table, lengths, message in (
        (TABLE, torch.tensor([9, 0, 9]), r"blocks from 0 to 10, found 99 at \[2, 2\]"),
        (TABLE.where(TABLE != 2, -1), CACHED, r"blocks from 0 to 10, found -1 at \[0, 1\]"),
        (TABLE.where(TABLE != 2, 2**32 + 2), CACHED, f"found {2**32 + 2}"),
        (TABLE.clamp(0, 10), torch.tensor([9, 0, 17]), "lengths from 0 to 16"),
        (TABLE, CACHED - 1, "lengths from 0 to 16"),
    ):
        with pytest.raises(scoremod.InvalidArgumentError, match=message):
            refused(road, paged, q, table, lengths)
    flat = torch.randn(9, 1, DIM, generator=random)
    ragged = lambda q, offsets: flex_attention(q, flat, flat, q_offsets=offsets)  # noqa: E731
    refused(road, ragged, flat, torch.tensor([0, 4, 9]))
    for wrong in ([0, 11, 9], [0, 4, 10], [-1, 4, 9], [0, 4 + 2**32, 9]):
        with pytest.raises(scoremod.InvalidArgumentError, match="found"):
            refused(road, ragged, flat, torch.tensor(wrong))


def test_pages_that_are_none_end_a_sequence_where_nobody_checks_them(random, monkeypatch):
    """As in device memory, whose tables are not read before the call: no other sequence's keys take part."""
    from scoremod.torch import sequences

    _, k, v = pools(random)
    monkeypatch.setattr(sequences, "on_host", lambda tensor: False)
    table, lengths = TABLE.to(torch.int32), torch.tensor([14, 9, 6], dtype=torch.int32)
    *found, ended = sequences.gathered(k, v, (table, table.where(table != 3, -1), lengths))
    assert ended.tolist() == [12, 0, 4]
    for whole, pool in zip(found, (k, v)):
        torch.testing.assert_close(whole[0, :, :12], torch.cat([pool[n] for n in (9, 2, 5)], 1))
        assert not whole[0, :, 12:].any() and not whole[1].any() and not whole[2, :, 4:].any()


def test_a_sink_beside_tokens_that_no_sequence_has(random):
    x, sink = torch.randn(10, 2, DIM, generator=random), torch.randn(2, generator=random)
    offsets = torch.tensor([2, 5, 8])
    found, lse = flex_attention(x, x, x, q_offsets=offsets, max_length=3, sink=sink, return_lse=True)
    expected, expected_lse = one_by_one(x, x, x, torch.ones(2, 2), torch.zeros(24), sink, [offsets.tolist()] * 2)
    assert not found[[0, 1, 8, 9]].any() and lse[[0, 1, 8, 9]].isneginf().all()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(lse, expected_lse)
    bias = torch.randn(2, 10, generator=random)  # is longer than any sequence
    score_mod = lambda s, b, h, i, j: s + bias[b, j]  # noqa: E731
    longer = flex_attention(x, x, x, score_mod, q_offsets=offsets, max_length=3)
    torch.testing.assert_close(longer[2:8], flex_attention(x[2:8], x[2:8], x[2:8], score_mod, q_offsets=offsets - 2))


class Fills(TorchDispatchMode):
    """Counts the operations that fill memory."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        self.count += operation.__name__.split(".")[0] in ("fill_", "full", "zero_", "zeros", "zeros_like")
        return operation(*arguments, **(options or {}))


@pytest.mark.parametrize(("device", "filled"), [("cpu", 6), ("cuda", 0)])
def test_outputs_are_filled_beforehand_on_the_host_alone(device, filled):
    """On a GPU the kernels write the rows of tokens that no sequence has."""
    call = Call(None, place=RAGGED)
    with FakeTensorMode(), Fills() as fills:
        q = torch.empty(TOKENS, HEADS, DIM, device=device)
        attention_ops.output_of(call, q, q)
        for shape in (q.shape[:-1], q.shape[:-1]):
            attention_ops.rows_of(call, q, shape)
        for tensor in (q, q, q):
            attention_ops.gradient_of(call, tensor)
    assert fills.count == filled
