"""Users' mistakes are refused or warned of, with the place in their text and the remedy."""

import re
import warnings

import pytest
import torch

import scoremod
from scoremod.torch import flex_attention

B, H, S, D = 2, 4, 16, 8


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def tensors(random, seq_q=S, seq_kv=S):
    return [torch.randn(B, H, seq, D, generator=random) for seq in (seq_q, seq_kv, seq_kv)]


def test_backends_of_another_memory_are_told_with_those_of_this_one(random):
    names = [answer["backend"] for answer in scoremod.support({"batch": 1, "heads_q": 1, "seq_q": 1, "dim_qk": 8}, level="static")]
    if "kernels" not in names:
        pytest.skip("this build has no backend for a GPU's memory")
    message = "expected one that runs in host memory, where the tensors are; found none among those chosen by the caller; choose among (cpu, reference|reference, cpu), or move the tensors"
    with pytest.raises(scoremod.UnsupportedError, match=message):
        flex_attention(*tensors(random), backends="kernels")


def test_more_entries_than_heads_are_refused(random):
    slopes = torch.randn(8, generator=random)

    def alibi(score, b, h, q_idx, kv_idx):
        return score + slopes[h] * (kv_idx - q_idx)

    message = (
        r"score_mod: 'slopes' of shape \(8,\), indexed at .*test_mistakes.py:\d+ \(alibi\) by h: expected a size of 4 .* found 8\. .* index a slice .* offsets="
    )
    for run in (flex_attention, torch.compile(flex_attention, backend="eager")):
        with pytest.raises(
            scoremod.InvalidArgumentError if run is flex_attention else Exception, match="expected a size of 4 along dimension 0, one for each h, found 8"
        ):
            run(*tensors(random), alibi)
    with pytest.raises(scoremod.InvalidArgumentError, match=message):
        flex_attention(*tensors(random), alibi)
    given = tensors(random)
    second = flex_attention(*given, alibi, offsets=scoremod.Offsets(head=4))
    torch.testing.assert_close(second, flex_attention(*given, lambda s, b, h, i, j: s + slopes[4:][h] * (j - i)))
    first = flex_attention(*given, alibi, offsets=scoremod.Offsets())
    torch.testing.assert_close(first, flex_attention(*given, lambda s, b, h, i, j: s + slopes[:4][h] * (j - i)))


def test_a_buffer_may_have_more_batches_and_positions(random):
    lengths, ids = torch.full((5,), S), torch.arange(3 * S)
    o = flex_attention(*tensors(random), mask_mod=lambda b, h, q_idx, kv_idx: (kv_idx < lengths[b]) & (ids[q_idx] >= 0))
    assert torch.isfinite(o).all()


def test_more_indices_than_dimensions_are_refused(random):
    slopes = torch.randn(H, generator=random)
    with pytest.raises(
        scoremod.InvalidArgumentError, match=r"score_mod: 'slopes' of shape \(4,\), indexed at .*\(<lambda>\): expected 1 indices at most, found 2"
    ):
        flex_attention(*tensors(random), lambda score, b, h, q_idx, kv_idx: score + slopes[h, q_idx])
    wide = torch.randn(H, S, generator=random)
    flex_attention(*tensors(random), lambda score, b, h, q_idx, kv_idx: score + wide[..., h, q_idx])


def test_a_tensor_on_another_device_is_named(random):
    slopes = torch.ones(H, device="meta")
    with pytest.raises(
        scoremod.InvalidArgumentError, match=r"'slopes' of shape \(4,\), indexed at .*: expected one on cpu, where query is, found one on meta; move it"
    ):
        flex_attention(*tensors(random), lambda score, b, h, q_idx, kv_idx: score + slopes[h])


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_large_part_that_pytorch_computes_is_warned_of(compiled, random, monkeypatch):
    torch._dynamo.reset()
    edges = torch.tensor([3, 9])
    run = torch.compile(flex_attention, backend="eager") if compiled else flex_attention

    def by_pair(score, b, h, q_idx, kv_idx):
        return score + torch.searchsorted(edges, q_idx - kv_idx)

    monkeypatch.setenv("SCOREMOD_WARN_MIB", "0.0019")  # 16 * 16 * 8 bytes are 0.00195 MiB
    with pytest.warns(UserWarning, match=r"array of shape \(16, 16\), 0 MiB, over \(q_idx, kv_idx\), which PyTorch computes.*SCOREMOD_WARN_MIB") as found:
        run(*tensors(random), by_pair)
    assert compiled or found[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "score_mod or mask_mod is traced anew")
        flex_attention(*tensors(random), lambda score, b, h, q_idx, kv_idx: score + torch.searchsorted(edges, q_idx))
        monkeypatch.setenv("SCOREMOD_WARN_MIB", "0.002")
        flex_attention(*tensors(random), by_pair)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_causal_query_without_a_position_is_warned_of(compiled, random):
    torch._dynamo.reset()
    query, key, value = tensors(random, seq_q=1)
    run = torch.compile(flex_attention, backend="eager") if compiled else flex_attention
    with pytest.warns(UserWarning, match=r"mask_mod keeps key 0 alone of 16: .* q_start=15, or by a tensor of each batch's") as found:
        o = run(query, key, value, mask_mod=lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & (q_idx - kv_idx < 9))
    assert compiled or found[0].filename == __file__
    torch.testing.assert_close(o, value[:, :, :1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        last = flex_attention(query, key, value, mask_mod=causal, q_start=S - 1)
        flex_attention(query, key, value, mask_mod=causal, q_start=torch.full((query.shape[0],), S - 1))
        flex_attention(query, key, value, mask_mod=causal, q_start=0)
        flex_attention(query, key, value, mask_mod=causal, offsets=scoremod.Offsets())
        flex_attention(query, key[:, :, :1], value[:, :, :1], mask_mod=causal)
        flex_attention(*tensors(random, seq_q=2), mask_mod=causal)
    torch.testing.assert_close(last, flex_attention(query, key, value))


@pytest.mark.parametrize(
    ("shape", "index"),
    [((0,), lambda bias, i, j: bias[i]), ((0,), lambda bias, i, j: bias[j - i]), ((S, 0), lambda bias, i, j: bias[i, j])],
    ids=["axis", "formula", "last"],
)
def test_a_captured_tensor_without_elements_is_named(shape, index, random):
    bias = torch.ones(shape)
    message = rf"score_mod: 'bias' of shape {re.escape(str(shape))}, indexed at .*test_mistakes.py:\d+ .*: expected elements along dimension {len(shape) - 1}, found none"
    with pytest.raises(scoremod.InvalidArgumentError, match=message):
        flex_attention(*tensors(random), lambda score, b, h, i, j: score + index(bias, i, j))


@pytest.mark.parametrize("result", [None, 1.5, (True,), 1j], ids=repr)
@pytest.mark.parametrize("beside", ["lengths", "token_list"])
def test_a_mask_that_returns_no_bool_is_named_beside_others(beside, result, random):
    options = {"lengths": torch.full((B,), 3)} if beside == "lengths" else {"token_list": torch.zeros(B, S, 1, dtype=torch.int32)}
    with pytest.raises(scoremod.InvalidArgumentError, match="mask_mod: expected it to return whether the key is kept, a bool, found"):
        flex_attention(*tensors(random), mask_mod=lambda b, h, q_idx, kv_idx: result, **options)


@pytest.mark.parametrize("wrong", [3, lambda b, h: True], ids=["number", "arguments"])
def test_no_mask_is_named_beside_lengths_and_in_calls_of_nothing(wrong, random):
    query, key, value = tensors(random)
    for arguments in ({"query": query, "lengths": torch.full((B,), 3)}, {"query": query[:, :, :0]}):
        with pytest.raises(scoremod.InvalidArgumentError, match="mask_mod: expected a function"):
            flex_attention(key=key, value=value, mask_mod=wrong, **arguments)


def test_tensors_without_numbers_are_refused_under_autocast(random):
    query, key, value = tensors(random)
    for others in ((key, value), (key.to("meta"), value.to("meta"))):
        with torch.autocast("cpu", torch.bfloat16), pytest.raises(scoremod.Error, match="meta"):
            flex_attention(query.to("meta"), *others)
