"""explain() and support() describe calls."""

import json
import sys

import pytest
import torch

import scoremod
from scoremod.program import operand_name
from scoremod.scores import HeadScores
from scoremod.torch import draw, execution, explain, flex_attention, support


def test_explain_names_each_operand_with_its_origin():
    q = torch.ones(2, 4, 16, 8, dtype=torch.bfloat16)
    slopes, edges, ids = torch.ones(4), torch.tensor([3, 9]), torch.zeros(2, 16, dtype=torch.int64)

    def score_mod(score, b, h, q_idx, kv_idx):
        return score + slopes[h] * (kv_idx - q_idx) + torch.searchsorted(edges, kv_idx) * 0.5

    explanation = explain(q, q, q, score_mod, mask_mod=lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & (ids[b, q_idx] == ids[b, kv_idx]))
    found = [(x.origin, x.axes, x.shape, x.dtype, x.bytes) for x in explanation.operands]
    assert found == [
        ("captured tensor", ("h",), (4,), "float32", 16),
        ("computed by PyTorch", ("kv_idx",), (16,), "float32", 64),
        ("captured tensor", ("b", "q_idx"), (2, 16), "int32", 128),
        ("captured tensor", ("b", "kv_idx"), (2, 16), "int32", 128),
    ]
    text = str(explanation)
    assert [x.called for x in explanation.operands] == ["slopes", "", "ids", "ids"]
    assert (
        "x0: float32[4], over h, captured tensor slopes, 16 bytes" in text
        and "computed by PyTorch, 64 bytes" in text
        and "accumulate x0" in text
        and "cpu: yes" in text
    )
    assert explanation.problem["dtype"] == "bf16" and explanation.problem["backward"]


def soft_cap(graph, score, tensors):
    cap = tensors["cap"]
    return graph.mul(a=graph.tanh(input=graph.div(a=score, b=cap)), b=cap)


def test_callbacks_are_explained_as_the_same_function():
    q, k = torch.ones(2, 4, 16, 8), torch.ones(2, 2, 16, 8)
    cap = torch.full((1, 4, 1, 1), 20.0)
    explained = explain(q, k, k, soft_cap, score_mod_tensors={"cap": cap})
    plain = explain(q, k, k, lambda score, b, h, q_idx, kv_idx: torch.tanh(score / cap[0, h, 0, 0]) * cap[0, h, 0, 0])
    assert explained.program == plain.program
    assert [(x.axes, x.shape) for x in explained.operands] == [(("h",), (4,))]
    assert support(q, k, k, soft_cap, score_mod_tensors={"cap": cap}) == support(q, k, k)


def test_callbacks_are_explained_where_sequences_are_ragged():
    x, offsets = torch.ones(12, 2, 8), torch.tensor([0, 5, 12])
    tensors = {"cap": torch.full((2, 1, 1, 1), 20.0)}
    explained = explain(x, x, x, soft_cap, q_offsets=offsets, max_length=7, score_mod_tensors=tensors)
    assert explained.problem["batch"] == 2 and "tanh" in explained.program
    with pytest.raises(scoremod.InvalidArgumentError, match="cap"):
        explain(x, x, x, soft_cap, q_offsets=offsets, max_length=7, score_mod_tensors={"cap": torch.ones(3, 1, 1, 1)})


def test_a_call_whose_trace_is_kept_is_explained():
    """A tensor without dimensions is a source of its own kind."""
    q, factor = torch.ones(1, 1, 16, 8), torch.tensor(3.0)
    function = lambda score, *_: score * factor  # noqa: E731
    first = explain(q, q, q, function)
    flex_attention(q, q, q, function)
    again = explain(q, q, q, function)
    assert [(x.origin, x.shape) for x in again.operands] == [(x.origin, x.shape) for x in first.operands] == [("scalar", ())]
    assert again.program == first.program


def test_a_wrong_backward_callback_is_refused_where_it_is_explained():
    q = torch.ones(1, 1, 4, 8)
    with pytest.raises(scoremod.InvalidArgumentError, match="score_mod_bprop"):
        explain(q, q, q, soft_cap, score_mod_tensors={"cap": 20.0}, score_mod_bprop=lambda graph, dscore, tensors: dscore)
    with pytest.raises(TypeError, match="score_mod_tensor: explain.*write score_mod_tensors"):
        explain(q, q, q, soft_cap, score_mod_tensor={"cap": 20.0})


def test_support_gives_reasons():
    q = torch.ones(1, 1, 16, 8)
    answers = support(q, q, q)
    assert answers["cpu"] == () and answers["reference"] == ()
    assert answers.get("cudnn", ("not built",))  # it takes no float32, wherever it is


def test_what_runs_is_of_the_memory_of_the_tensors():
    q = torch.ones(1, 1, 16, 8)
    explanation = explain(q, q, q)
    assert explanation.backend == explanation.backward_backend == "cpu" and explanation.gradient_backends == {}
    only_for_gpus = explain(q, q, q, backends=["kernels"])
    assert only_for_gpus.backend is None and only_for_gpus.backward_backend is None
    (cpu,) = (answer for answer in only_for_gpus.compiled["backends"] if answer["backend"] == "cpu")
    assert cpu["why_not_chosen"] == "left out by the caller"


def test_the_page_has_a_map_of_the_mask():
    q = torch.ones(1, 1, 64, 8)
    page = str(explain(q, q, q, mask_mod=lambda b, h, q_idx, kv_idx: q_idx >= kv_idx))
    assert "2 x 2 scores each" in page and "\n##+" + 29 * "." + "\n" in page
    assert "scores each" not in str(explain(q, q, q))


def test_a_drawing_is_of_the_traced_functions(monkeypatch):
    """The picture is of the traced problem and its operands, by the names that the functions have for them; tests/python/test_draw.py tests it."""
    drawn = []
    monkeypatch.setattr(sys.modules["scoremod.torch.explain"], "picture", lambda *what, **options: drawn.append((*what, options)))
    q = torch.randn(1, 2, 32, 8, dtype=torch.bfloat16)
    slopes = torch.tensor([0.5, 0.25], dtype=torch.bfloat16, requires_grad=True)
    draw(q, q, q, lambda s, b, h, i, j: s + slopes[h] * (j - i), mask_mod=lambda b, h, i, j: i >= j, tile=8, head=1)
    ((problem, operands, names, options),) = drawn
    assert names == {operand_name(0): "slopes"}
    scores = HeadScores(scoremod.Attention(problem, backend="reference").problem, operands, 0, 1, 0, 32)
    rows = torch.arange(32)
    expected = torch.where(rows >= 4, 0.25 * (4 - rows), -torch.inf)
    assert torch.equal(torch.from_numpy(scores.of_key(4)), expected) and options == {"tile": 8, "head": 1}


def test_heads_may_be_grouped_without_saying_so_again():
    q, k = torch.ones(1, 4, 16, 8), torch.ones(1, 2, 16, 8)
    assert explain(q, k, k).answers()["cpu"] == () and support(q, k, k)["cpu"] == ()
    with pytest.raises(scoremod.InvalidArgumentError, match="enable_gqa=True"):
        explain(q, k, k, enable_gqa=False)


def rows_of(explanation):
    return explanation.mask_map()["rows"]


def test_operands_decide_about_the_tiles_of_the_map():
    """Documents of 16, 24 and 24 tokens, of which tiles are 2 x 2."""
    q = torch.ones(2, 1, 64, 8)
    ids = torch.stack([torch.arange(64).ge(16).int() + torch.arange(64).ge(40), torch.zeros(64, dtype=torch.int32)])
    documents = lambda b, h, q_idx, kv_idx: ids[b, q_idx] == ids[b, kv_idx]  # noqa: E731
    explanation = explain(q, q, q, mask_mod=documents)
    lengths = (8, 12, 12)
    expected = [("." * sum(lengths[:i]) + "#" * n + "." * sum(lengths[i + 1 :])) for i, n in enumerate(lengths) for _ in range(n)]
    assert rows_of(explanation) == expected and "+ some (batch 0, head 0)" in str(explanation)
    causal = explain(q, q, q, mask_mod=lambda b, h, i, j: documents(b, h, i, j) & (i >= j))
    assert rows_of(causal)[0] == "+" + 31 * "." and rows_of(causal)[31] == 20 * "." + 11 * "#" + "+"
    added = torch.where(documents(*torch.meshgrid(torch.tensor(0), torch.tensor(0), torch.arange(64), torch.arange(64), indexing="ij")), 0.0, -torch.inf)[0, 0]
    assert rows_of(explain(q, q, q, lambda s, b, h, i, j: torch.where(added[i, j] < 0, -torch.inf, s))) == expected


def test_a_map_whose_scores_decide_stays_open():
    q, slopes = torch.ones(1, 1, 64, 8), torch.ones(1)
    by_score = explain(q, q, q, lambda s, b, h, i, j: torch.where(s > slopes[h], s, -torch.inf))
    assert set("".join(rows_of(by_score))) == {"+"} and "or operands decide" in str(by_score)


def listed_tensors(random):
    """(q, k, v, list) of 2 batches with 3 queries, 50 keys and 12 entries."""
    q, k, v = (torch.randn(2, heads, length, 16, generator=random) for heads, length in ((4, 3), (2, 50), (2, 50)))
    return q, k, v, torch.randint(-9, 50, (2, 3, 12), generator=random)


def test_a_token_list_is_explained_as_the_call_over_its_rows(random):
    q, k, v, listed = listed_tensors(random)
    bias, slopes = torch.ones(50), torch.ones(2, 4)
    found = explain(q, k, v, lambda s, b, h, i, j: s + bias[j] + slopes[b, h] * (j - i), mask_mod="causal", q_start=47, token_list=listed)
    assert {name: found.problem[name] for name in ("batch", "seq_q", "seq_kv", "backward")} == {"batch": 6, "seq_q": 1, "seq_kv": 12, "backward": False}
    assert found.problem["paged"] == {"block_size": 1, "blocks": 100, "blocks_per_sequence": 12} and found.listed == (2, 3)
    shapes = {x.called: x.shape for x in found.operands}
    assert shapes == {"keys": (6, 12), "bias": (50,), "slopes": (2, 4), "of_batch": (6,), "of_query": (6,), "starts": (2,)}
    assert "b is a row, one for each of 2 batches * 3 queries; kv_idx is a place in it" in str(found) and "token list" not in str(explain(q, k, v))
    assert found.backend == "cpu" and found.answers()["cpu"] == () == support(q, k, v, token_list=listed)["cpu"]
    assert explain(q, k, v, token_list=listed, backends=["kernels"]).backend is None


@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.parametrize("options", ["none", "score_mod", "sink", "one cache", "one memory"])
def test_a_call_with_a_token_list_runs_what_was_explained(options, traces, monkeypatch, random):
    q, k, v, listed = listed_tensors(random)
    bias, attention_of, problems = torch.ones(50), execution._attention_of, []
    more = {
        "none": {},
        "score_mod": {"score_mod": lambda s, b, h, i, j: s + bias[j], "mask_mod": "causal", "lengths": torch.tensor([50, 20]), "q_start": 47},
        "sink": {"sink": torch.ones(4)},
        "one cache": {"key": k[:1], "value": v[:1]},
        "one memory": {"value": k[..., :8]},
    }
    given = {"query": q, "key": k, "value": v, "token_list": listed, "enable_gqa": True, **more[options]}

    def compiled(described, template, *others):
        problems.append(json.loads(template.text(*described)))
        return attention_of(described, template, *others)

    monkeypatch.setattr(execution, "_attention_of", compiled)
    explained = explain(**given).problem
    flex_attention(**given, return_lse=True)
    for operand in explained["operands"]:
        operand["gradient"] = False  # explain() asks for those of all operands
    assert problems == [explained] and len(traces) == 1


def test_callbacks_are_explained_beside_a_token_list(random):
    q, k, v, listed = listed_tensors(random)
    found = explain(q, k, v, soft_cap, token_list=listed, score_mod_tensors={"cap": torch.full((2, 1, 1, 1), 20.0)})
    assert "tanh" in found.program and found.problem["batch"] == 6
