"""Problems whose sizes come with calls, over NumPy arrays."""

import copy
import pickle

import numpy as np
import pytest

import scoremod

OPEN = {"batch": None, "heads_q": 4, "heads_kv": 2, "seq_q": None, "seq_kv": None, "dim_qk": 8, "backward": True,
        "program": "operand slopes: f32 [h]; table bias: f32 rank 1; value = score + slopes * f32(kv_idx - q_idx) + bias[kv_idx]; keep = kv_idx <= q_idx + 2",
        "operands": [{"name": "bias", "shape": [None]}]}  # fmt: skip


def arrays(batch, queries, keys):
    rng = np.random.default_rng(batch + 10 * queries + 100 * keys)
    q, k, v = (rng.standard_normal((batch, n, h, 8)).astype(np.float32) for n, h in ((queries, 4), (keys, 2), (keys, 2)))
    return (q, k, v), {"slopes": rng.random(4).astype(np.float32), "bias": rng.standard_normal(keys).astype(np.float32)}


def test_all_sizes_are_one_compile_and_right():
    scoremod.cache.clear()
    before = scoremod.cache.statistics()["compiled"]["problems"]
    opened = scoremod.OpenAttention(OPEN, backend="cpu")
    for batch, queries, keys in ((1, 1, 1), (2, 1, 7), (3, 5, 9), (1, 40, 33)):
        tensors, operands = arrays(batch, queries, keys)
        at = opened.at(batch=batch, seq_q=queries, seq_kv=keys, operands={"bias": (keys,)})
        fixed = scoremod.Attention(OPEN | {"batch": batch, "seq_q": queries, "seq_kv": keys, "operands": [{"name": "bias", "shape": [keys]}]}, backend="cpu")
        assert at.problem == fixed.problem
        for one, other in zip(at.forward(*tensors, operands, return_lse=True), fixed.forward(*tensors, operands, return_lse=True)):
            np.testing.assert_array_equal(one, other)
    assert scoremod.cache.statistics()["compiled"]["problems"] - before == 1


def test_strides_come_with_the_call():
    opened = scoremod.OpenAttention(OPEN | {"program": "value = score", "operands": []}, backend="cpu")
    (q, k, v), _ = arrays(2, 3, 5)
    cache = np.zeros((2, 16, 2, 8), np.float32)
    cache[:, :5] = k
    strided = opened.at(batch=2, seq_q=3, seq_kv=5, strides={"k": (256, 8, 16, 1)})
    dense = opened.at(batch=2, seq_q=3, seq_kv=5)
    np.testing.assert_array_equal(strided.forward(q, cache[:, :5], v), dense.forward(q, k, v))


def test_copies_and_pickles_have_handles_of_their_own():
    opened = scoremod.OpenAttention(OPEN, backend="cpu")
    tensors, operands = arrays(1, 2, 3)
    at = opened.at(batch=1, seq_q=2, seq_kv=3, operands={"bias": (3,)})
    expected = at.forward(*tensors, operands)
    for other in (copy.copy(at), pickle.loads(pickle.dumps(at))):
        np.testing.assert_array_equal(other.forward(*tensors, operands), expected)
    del opened
    np.testing.assert_array_equal(at.forward(*tensors, operands), expected)


@pytest.mark.parametrize(
    "arguments, part",
    [
        ({"seq_kv": 3, "seq_q": 2}, "sizes.batch: expected a size of at least 1, since the problem leaves 'batch' open; found none"),
        ({"batch": 1, "seq_q": 2, "seq_kv": 3}, "bias"),
        ({"batch": 1, "seq_q": 2, "seq_kv": 3, "heads_q": 6, "operands": {"bias": (3,)}}, "sizes.heads_q: expected 4, which the problem fixes"),
        ({"batch": -1, "seq_q": 2, "seq_kv": 3}, "batch: expected a size of at least 1, found -1"),
        ({"batch": 1.5, "seq_q": 2, "seq_kv": 3}, "batch: expected a size of at least 1, found 1.5"),
        ({"batch": 1, "seq_q": 2, "seq_kv": 3, "length": 4}, "length"),
        ({"batch": 1, "seq_q": 2, "seq_kv": 3, "operands": {"tables": (3,)}}, "expected an operand of the problem, found 'tables'"),
        ({"batch": 1, "seq_q": 2, "seq_kv": 3, "operands": {"bias": (3, 4)}}, "expected 1 sizes for table 'bias', found 2"),
        ({"batch": 1, "seq_q": 2, "seq_kv": 2**40, "operands": {"bias": (3,)}}, "seq_kv: expected a size from 1"),
    ],
)
def test_mistakes_have_names(arguments, part):
    opened = scoremod.OpenAttention(OPEN, backend="cpu")
    with pytest.raises(scoremod.InvalidArgumentError) as raised:
        opened.at(**arguments)
    assert part in str(raised.value)


def test_an_open_problem_has_no_call_without_sizes():
    with pytest.raises(scoremod.InvalidArgumentError, match="scoremod_attention_at gives that of a call's sizes"):
        scoremod.Attention(OPEN, backend="cpu").backend
