"""Arrays without batches, heads, queries or keys: outputs and gradients have their shapes, and rows without keys are what they are elsewhere."""

import json

import ml_dtypes
import numpy as np
import pytest

import scoremod

SIZES = {"batch": 2, "heads_q": 4, "heads_kv": 2, "seq_q": 5, "seq_kv": 7, "dim_qk": 8, "dim_v": 4}
EMPTY = ({"batch": 0}, {"seq_q": 0}, {"seq_kv": 0}, {"heads_q": 0, "heads_kv": 0}, {"seq_q": 0, "seq_kv": 0}, {"batch": 0, "seq_kv": 0})
DTYPES = {"f32": np.float32, "bf16": ml_dtypes.bfloat16}


def shape(sizes, tensor, layout):
    heads, length, dim = {"q": ("heads_q", "seq_q", "dim_qk"), "k": ("heads_kv", "seq_kv", "dim_qk"), "v": ("heads_kv", "seq_kv", "dim_v")}.get(
        tensor, ("heads_q", "seq_q", "dim_v")
    )
    return tuple(sizes[{"B": "batch", "H": heads, "S": length, "D": dim}[letter]] for letter in layout)


def arrays_of(sizes, layout, dtype):
    return [np.ones(shape(sizes, tensor, layout), dtype) for tensor in "qkv"]


@pytest.mark.parametrize("layout", ["BSHD", "BHSD"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("empty", EMPTY, ids=str)
def test_one_call(empty, dtype, layout):
    sizes = {**SIZES, **empty}
    operands = {
        "slope": ("h", np.ones(sizes["heads_q"], np.float32)),
        "bias": ("b, kv_idx", np.ones((sizes["batch"], sizes["seq_kv"]), np.float32)),
        "by_distance": ("table", np.ones(16, np.float32)),
    }
    given = {"score_mod": "score * slope + bias + by_distance[kv_idx]", "mask_mod": "q_idx >= kv_idx", "operands": operands, "layout": layout}
    q, k, v = arrays_of(sizes, layout, DTYPES[dtype])
    out = np.full(shape(sizes, "o", layout), 7, DTYPES[dtype])
    o, lse = scoremod.attention(q, k, v, **given, return_lse=True, out=(out, None))
    assert o is out and not o.astype(np.float32).any()
    assert lse.dtype == np.float32 and lse.shape == tuple(sizes[name] for name in ("batch", "heads_q", "seq_q")) and np.isneginf(lse).all()
    allocated = scoremod.attention(q, k, v, **given)
    assert allocated.shape == o.shape and allocated.dtype == o.dtype and not allocated.astype(np.float32).any()


@pytest.mark.parametrize("sink", ["", "learned", "off_by_one"])
@pytest.mark.parametrize("empty", EMPTY, ids=str)
def test_both_directions(empty, sink):
    sizes = {**SIZES, **empty}
    problem = {**sizes, "program": {"score_mod": ["alibi"]}, "backward": True, "stats": True, "max_logit": True, "lengths": {"kv": True}}
    problem |= {"sink": sink} if sink else {}
    attention = scoremod.Attention(problem)
    assert {name: attention.problem[name] for name in sizes} == sizes and attention.is_empty and attention.forward_workspace_bytes == 0
    operands = {"slopes": np.ones(sizes["heads_q"], np.float32), "lengths_kv": np.ones(sizes["batch"], np.int32)}
    of_sink = np.arange(sizes["heads_q"], dtype=np.float32)
    operands |= {"sink": of_sink} if sink == "learned" else {}
    q, k, v = arrays_of(sizes, "BSHD", np.float32)
    o, lse, largest = attention.forward(q, k, v, operands, return_lse=True, return_max_logit=True)
    of_rows = {"": -np.inf, "learned": of_sink[:, None], "off_by_one": 0}[sink]
    np.testing.assert_array_equal(lse, np.broadcast_to(of_rows, lse.shape))
    assert o.shape == shape(sizes, "o", "BSHD") and not o.any() and np.isneginf(largest).all()
    gradients = attention.backward(q, k, v, o, lse, np.ones_like(o), operands)
    wants = {"slopes": operands["slopes"]} | ({"sink": of_sink} if sink == "learned" else {})
    assert gradients.d_operands.keys() == wants.keys()
    for got, want in [*zip(gradients[:3], (q, k, v)), *((gradients.d_operands[name], want) for name, want in wants.items())]:
        assert got.shape == want.shape and got.dtype == want.dtype and not got.any()


@pytest.mark.parametrize("empty", EMPTY, ids=str)
def test_sizes_that_come_with_the_call(empty):
    sizes = {**SIZES, **empty}
    open_sizes = dict.fromkeys(("batch", "heads_q", "heads_kv", "seq_q", "seq_kv"))
    program = "operand slope: f32 [h]\ntable bias: f32 rank 1\nvalue = score * slope + bias[kv_idx]"
    problem = {**SIZES, "program": program, "operands": [{"name": "bias", "shape": [None]}], "backward": True}
    opened = scoremod.OpenAttention({**problem, **open_sizes})
    extents = {name: size for name, size in sizes.items() if name in open_sizes}
    attention = opened.at(**extents, operands={"bias": (sizes["seq_kv"],)})
    assert attention.is_empty and {name: attention.problem[name] for name in sizes} == sizes
    operands = {"slope": np.ones(sizes["heads_q"], np.float32), "bias": np.ones(sizes["seq_kv"], np.float32)}
    q, k, v = arrays_of(sizes, "BSHD", np.float32)
    fixed = scoremod.Attention({**problem, **sizes, "operands": [{"name": "bias", "shape": [sizes["seq_kv"]]}]})
    results = [each.forward(q, k, v, operands, return_lse=True) for each in (attention, fixed)]
    for one, other in zip(*results):
        np.testing.assert_array_equal(one, other)
    gradients = attention.backward(q, k, v, *results[0], np.ones_like(results[0][0]), operands)
    for gradient, array in zip(gradients[:3], (q, k, v)):
        assert gradient.shape == array.shape and not gradient.any()
    again = opened.at(**{**extents, **{name: SIZES[name] for name in empty}}, operands={"bias": (SIZES["seq_kv"],)})
    assert not again.is_empty and {name: again.problem[name] for name in SIZES} == SIZES


@pytest.mark.parametrize(
    ("fields", "sizes"),
    [
        ({"batch": 2, "seq_q": None}, {"batch": 0, "seq_q": 3}),
        ({"heads_q": None}, {"heads_q": 0}),
        ({"heads_q": None, "heads_kv": None}, {"heads_q": 0, "heads_kv": 2}),
        ({"seq_q": None, "tokens_q": None}, {"seq_q": 0, "tokens_q": 4}),
        ({"seq_q": None, "tokens_q": None}, {"seq_q": 3, "tokens_q": 0}),
    ],
)
def test_sizes_that_cannot_be_0_come_with_no_call(fields, sizes):
    opened = scoremod.OpenAttention({**SIZES, **fields, "program": "value = score"})
    with pytest.raises(scoremod.InvalidArgumentError, match="expected a size of at least 1, found 0"):
        opened.at(**sizes)


def test_an_empty_problem_is_the_limit_of_one_whose_keys_are_masked():
    """A backend writes the same for rows without a key, of these sizes but for the keys."""
    sizes = {**SIZES, "seq_kv": 0}
    masked = scoremod.attention(*arrays_of(SIZES, "BSHD", np.float32), mask_mod="kv_idx < 0", return_lse=True)
    for got, want in zip(scoremod.attention(*arrays_of(sizes, "BSHD", np.float32), return_lse=True), masked):
        np.testing.assert_array_equal(got, want)


def test_sizes_that_follow_from_others_are_empty_too():
    attention = scoremod.Attention(json.dumps({"batch": 1, "heads_q": 2, "seq_q": 0, "dim_qk": 8}))
    q = np.ones((1, 0, 2, 8), np.float32)
    assert attention.problem["seq_kv"] == 0 and attention.forward(q, q, q).shape == q.shape


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dim_qk": 0}, "dim_qk"),
        ({"heads_q": 0}, "heads_q"),
        ({"heads_kv": 0}, "heads_kv"),
        ({"batch": -2}, "batch"),
        ({"batch": False}, "batch"),
        ({"batch": 0, "seq_qq": 3}, "seq_qq"),
        ({"batch": 0, "program": "value = nothing"}, "nothing"),
        ({"batch": 0, "operands": [{"name": "x", "shape": [0]}]}, "operand"),
    ],
)
def test_what_is_wrong_beside_an_empty_size_is_refused(change, message):
    with pytest.raises(scoremod.InvalidArgumentError, match=message):
        scoremod.Attention({**SIZES, **change})


def test_arrays_are_held_to_an_empty_problem():
    attention = scoremod.Attention({**SIZES, "batch": 0, "program": {"score_mod": ["alibi"]}})
    q, k, v = arrays_of({**SIZES, "batch": 0}, "BSHD", np.float32)
    slopes = {"slopes": np.ones(4, np.float32)}
    for arguments, message in (
        ((q, k[:, :3], v, slopes), "k: expected shape"),
        ((q.astype(np.float16), k, v, slopes), "q: expected dtype"),
        ((np.ones((1, *q.shape[1:]), np.float32), k, v, slopes), "q: expected shape"),
        ((q, k, v, {"slopes": np.ones(3, np.float32)}), "expected shape"),
        ((q, k, v, {"slopes": np.ones(0, np.float32)}), "expected shape"),
        ((q, k, v), "slopes"),
    ):
        with pytest.raises(scoremod.InvalidArgumentError, match=message):
            attention.forward(*arguments)
    with scoremod.RequestQueue() as queue, pytest.raises(scoremod.InvalidArgumentError, match="a size of 0, of which nothing runs"):
        queue.forward(attention, q, k, v, slopes)
