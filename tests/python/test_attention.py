"""The bindings compute what the definition says, forward and backward. The shapes are small and of no round size."""

import dense_definition as dense
import numpy as np
import pytest

import scoremod

BATCH, SEQ_Q, SEQ_KV, HEADS_Q, HEADS_KV, DIM_QK, DIM_V = 2, 5, 7, 4, 2, 8, 3


def draw(rng, dtype=np.float32, batch=BATCH):
    """q, k, v."""
    shapes = (batch, SEQ_Q, HEADS_Q, DIM_QK), (batch, SEQ_KV, HEADS_KV, DIM_QK), (batch, SEQ_KV, HEADS_KV, DIM_V)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def problem_for(program, **changes):
    sizes = dict(batch=BATCH, heads_q=HEADS_Q, heads_kv=HEADS_KV, seq_q=SEQ_Q, seq_kv=SEQ_KV, dim_qk=DIM_QK, dim_v=DIM_V)
    return {**sizes, "program": program, **changes}


def assert_agrees(found, truth, plain):
    """Twice the error of a plain evaluation in the same precision, plus rounding the truth to that precision."""
    assert found.shape == truth.shape
    finite = np.isfinite(truth)
    np.testing.assert_array_equal(found[~finite], truth[~finite])
    found, truth, plain = (array[finite].astype(np.float64) for array in (found, truth, plain))
    rounding = np.finfo(np.float32).eps / 2 * np.linalg.norm(truth)
    assert np.linalg.norm(found - truth) <= 2 * np.linalg.norm(plain - truth) + rounding
    assert np.linalg.norm(truth) > 0, "a truth of zeros tests nothing"


def wide(*arrays):
    return [array.astype(np.float64) for array in arrays]


CASES = {
    "identity": (dict(), None, None),
    "causal": (dict(mask_mod="kv_idx <= q_idx + 2"), None, lambda b, h, q, k: k <= q + 2),
    "soft cap": (dict(score_mod="2.0 * tanh(score / 2.0)"), lambda s, b, h, q, k: 2 * np.tanh(s / 2), None),
    "alibi and window": (
        dict(score_mod="score - 0.25 * f32(abs(q_idx - kv_idx))", mask_mod="abs(q_idx - kv_idx) < 3"),
        lambda s, b, h, q, k: s - s.dtype.type(0.25) * np.abs(q - k).astype(s.dtype),
        lambda b, h, q, k: np.abs(q - k) < 3,
    ),
    "every index": (
        dict(score_mod="score * f32(1 + b + 2 * h) - 0.5 * f32(q_idx - 2 * kv_idx)"),
        lambda s, b, h, q, k: s * (1 + b + 2 * h).astype(s.dtype) - s.dtype.type(0.5) * (q - 2 * k).astype(s.dtype),
        None,
    ),
    "rows without a key": (dict(mask_mod="(q_idx > 1) & (kv_idx < 4)"), None, lambda b, h, q, k: (q > 1) & (k < 4)),
}


@pytest.mark.parametrize("case", CASES)
def test_forward_agrees_with_the_definition(rng, case):
    texts, score_mod, mask_mod = CASES[case]
    q, k, v = draw(rng)
    o, lse = scoremod.attention(q, k, v, **texts, return_lse=True)
    truth = dense.attention(*wide(q, k, v), score_mod, mask_mod)
    plain = dense.attention(q, k, v, score_mod, mask_mod)
    assert_agrees(o, truth[0], plain[0])
    assert_agrees(lse, truth[1], plain[1])


def test_operands_of_every_pattern(rng):
    q, k, v = draw(rng)
    slope = rng.standard_normal(HEADS_Q).astype(np.float32)
    bias = rng.standard_normal((BATCH, SEQ_Q, SEQ_KV)).astype(np.float32)
    table = rng.standard_normal((HEADS_Q, SEQ_Q + SEQ_KV)).astype(np.float32)
    lengths = np.array([3, 6], np.int32)
    allowed = rng.random((SEQ_Q, SEQ_KV)) < 0.8
    o = scoremod.attention(
        q,
        k,
        v,
        score_mod="score * slope + bias + gain * relative[h, q_idx - kv_idx + 6]",
        mask_mod="(kv_idx < lengths) & allowed",
        operands={
            "slope": ("h", slope),
            "bias": ("b, q_idx, kv_idx", bias),
            "gain": ("", np.float32(0.5)),
            "relative": ("table", table),
            "lengths": ("b", lengths),
            "allowed": ("q_idx, kv_idx", allowed),
        },
    )

    def score_mod(s, b, h, i, j):
        slopes, biases, entries = (array.astype(s.dtype) for array in (slope, bias, table))
        return s * slopes[h] + biases[b, i, j] + s.dtype.type(0.5) * entries[h, i - j + 6]

    def mask_mod(b, h, i, j):
        return (j < lengths[b]) & allowed[i, j]

    truth, _ = dense.attention(*wide(q, k, v), score_mod, mask_mod)
    plain, _ = dense.attention(q, k, v, score_mod, mask_mod)
    assert_agrees(o, truth, plain)


def test_backward_agrees_with_finite_differences(rng):
    """q, k, v and both float operands; grouped heads, a mask, and a row without a key."""
    program = [
        "operand slope: f32 [h]",
        "table bias: f32 rank 1",
        "value = tanh(score * slope) + bias[q_idx - kv_idx + 6]",
        "keep = (kv_idx <= q_idx + 1) & (q_idx != 3)",
    ]
    compiled = scoremod.Attention(problem_for(program, backward=True, operands=[{"name": "bias", "shape": [11]}]))
    q, k, v = draw(rng)
    operands = {"slope": rng.uniform(0.5, 1.5, HEADS_Q).astype(np.float32), "bias": rng.standard_normal(11).astype(np.float32)}
    o, lse = compiled.forward(q, k, v, operands, return_lse=True)
    d_o = rng.standard_normal(o.shape).astype(np.float32)
    found = compiled.backward(q, k, v, o, lse, d_o, operands)

    inputs = dict(zip(["q", "k", "v", "slope", "bias"], wide(q, k, v, *operands.values())))

    def loss():
        made, _ = dense.attention(
            inputs["q"],
            inputs["k"],
            inputs["v"],
            lambda s, b, h, i, j: np.tanh(s * inputs["slope"][h]) + inputs["bias"][i - j + 6],
            lambda b, h, i, j: (j <= i + 1) & (i != 3),
        )
        return (made * d_o).sum()

    gradients = {"q": found.dq, "k": found.dk, "v": found.dv, **found.d_operands}
    assert gradients.keys() == inputs.keys()
    for name, array in inputs.items():
        expected = dense.numeric_gradient(loss, array)
        assert np.linalg.norm(expected) > 0
        # The step leaves 1e-9 of truncation; what remains is float32's rounding in a handful of sums.
        assert np.linalg.norm(gradients[name] - expected) <= 2e-6 * np.linalg.norm(expected), name


def test_only_the_operand_gradients_that_are_wanted(rng):
    program = ["operand a: f32 [h]", "operand b2: f32 [h]", "operand n: i32 [b]", "value = score * a + b2", "keep = kv_idx < n"]
    problem = problem_for(program, backward=True)
    compiled = scoremod.Attention(problem)
    q, k, v = draw(rng)
    ones = np.ones(HEADS_Q, np.float32)
    operands = {"a": ones, "b2": ones, "n": np.array([7, 4], np.int32)}
    o, lse = compiled.forward(q, k, v, operands, return_lse=True)
    every = compiled.backward(q, k, v, o, lse, o, operands)
    one = compiled.backward(q, k, v, o, lse, o, operands, d_operands=["a"])
    assert set(every.d_operands) == {"a", "b2"}
    assert set(one.d_operands) == {"a"}
    np.testing.assert_array_equal(one.d_operands["a"], every.d_operands["a"])
    problem["operands"] = [{"name": "b2", "gradient": False}]
    declared = scoremod.Attention(problem).backward(q, k, v, o, lse, o, operands)
    assert set(declared.d_operands) == {"a"}


@pytest.mark.parametrize("layout", ["BSHD", "SBHD", "BHSD"])
def test_layouts_say_the_order_of_dimensions(rng, layout):
    arrays = draw(rng)
    axes = ["BSHD".index(letter) for letter in layout]
    o = scoremod.attention(*(array.transpose(axes) for array in arrays), score_mod="tanh(score)", layout=layout)
    truth, _ = dense.attention(*wide(*arrays), lambda s, *_: np.tanh(s))
    plain, _ = dense.attention(*arrays, lambda s, *_: np.tanh(s))
    assert_agrees(o, truth.transpose(axes), plain.transpose(axes))


def test_packed_tensors_are_read_in_place(rng):
    """q, k and v side by side in one array, as a projection makes them."""
    packed = rng.standard_normal((BATCH, SEQ_Q, 3, HEADS_Q, DIM_QK)).astype(np.float32)
    q, k, v = (packed[:, :, part] for part in range(3))
    batch, sequence, head, dim = (stride // 4 for stride in q.strides)
    layout = {"strides": {"batch": batch, "sequence": sequence, "head": head, "dim": dim}}
    compiled = scoremod.Attention(dict(batch=BATCH, heads_q=HEADS_Q, seq_q=SEQ_Q, dim_qk=DIM_QK, q=layout, k=layout, v=layout, backward=True))
    o, lse = compiled.forward(q, k, v, return_lse=True)
    gradients = compiled.backward(q, k, v, o, lse, o)
    assert gradients.dq.strides == q.strides
    truth, _ = dense.attention(*wide(q, k, v))
    assert_agrees(o, truth, dense.attention(q, k, v)[0])


@pytest.mark.parametrize("name", ["float16", "bfloat16", "uint16"])
def test_sixteen_bit_floats(rng, name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    storage = np.float16 if name == "float16" else ml_dtypes.bfloat16
    arrays = [array.astype(storage) for array in draw(rng)]
    given = [array.view(np.uint16) for array in arrays] if name == "uint16" else arrays
    compiled = scoremod.Attention(problem_for("value = tanh(score)", dtype="f16" if name == "float16" else "bf16"))
    o = compiled.forward(*given)
    assert o.dtype == given[0].dtype
    truth, _ = dense.attention(*wide(*arrays), lambda s, *_: np.tanh(s))
    error = np.abs(o.view(storage).astype(np.float64) - truth).max()
    # The result is rounded once to storage; weights may be, too.
    assert error <= float(ml_dtypes.finfo(storage).eps) * np.abs(truth).max() * 1.5
    assert error > 0


def test_a_program_that_reads_the_scale(rng):
    q, k, v = (rng.standard_normal((2, 5, 3, 8), dtype=np.float32) for _ in range(3))
    for scale in (None, 0.25, 0.5):
        found = scoremod.attention(q, k, v, score_mod="score + qk_scale * f32(kv_idx)", scale=scale)
        constant = 8**-0.5 if scale is None else scale
        want = scoremod.attention(q, k, v, score_mod=f"score + {np.float32(constant)!s} * f32(kv_idx)", scale=scale)
        np.testing.assert_array_equal(found, want)


def test_scale_and_offsets_of_a_call(rng):
    compiled = scoremod.Attention(problem_for("value = score\nkeep = kv_idx <= q_idx", index_offsets=True))
    q, k, v = draw(rng)
    o = compiled.forward(q, k, v, scale=0.125, offsets=scoremod.Offsets(query=3, key=1))
    truth, _ = dense.attention(*wide(q, k, v), None, lambda b, h, i, j: j + 1 <= i + 3, scale=0.125)
    plain, _ = dense.attention(q, k, v, None, lambda b, h, i, j: j + 1 <= i + 3, scale=0.125)
    assert_agrees(o, truth, plain)


def test_shards_of_a_batch_see_their_true_indices(rng):
    q, k, v = draw(rng)
    program = "value = score * f32(1 + b) + f32(h * kv_idx)"
    shard = scoremod.Attention(problem_for(program, batch=1, index_offsets=True))
    shards = [shard.forward(q[i : i + 1], k[i : i + 1], v[i : i + 1], offsets=(i, 0, 0, 0)) for i in range(BATCH)]

    def score_mod(s, b, h, i, j):
        return s * (1 + b).astype(s.dtype) + (h * j).astype(s.dtype)

    truth, _ = dense.attention(*wide(q, k, v), score_mod)
    plain, _ = dense.attention(q, k, v, score_mod)
    assert_agrees(np.concatenate(shards), truth, plain)


def test_support_says_why(rng):
    answers = scoremod.support(problem_for("value = score"))
    reference = next(answer for answer in answers if answer["backend"] == "reference")
    assert reference["supported"] and reference["reasons"] == []


def test_explain_says_what_the_compiler_found():
    explained = scoremod.explain(problem_for("value = score * 1.0\nkeep = kv_idx <= q_idx", backward=True))
    assert explained["mask"]["kind"] == "band"
    assert "d_score" in explained["derivative"]
    assert explained["backends"][-1]["backend"] == "reference"


def test_problem_is_what_was_understood():
    compiled = scoremod.Attention(problem_for("value = score + 0.0 * score", stats=True))
    assert compiled.problem["heads_kv"] == HEADS_KV
    assert compiled.problem["q"] == "BSHD"
    assert scoremod.Attention(compiled.problem).problem == compiled.problem
    assert compiled.backend in repr(compiled)
    compiled.problem["batch"] = 99
    assert compiled.problem["batch"] == BATCH


def test_version_is_that_of_the_project():
    assert scoremod.version().count(".") == 2 and scoremod.__version__ == scoremod.version()
