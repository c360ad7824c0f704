"""Arrays that callers give for results, and scratch memory that calls share: the same numbers, in that memory, and wrong ones refused by name."""

import copy
import pickle
import threading

import numpy as np
import pytest

import scoremod
from scoremod.workspace import Workspace

B, S, H, D = 2, 33, 4, 8
PROBLEM = {
    "batch": B, "heads_q": H, "heads_kv": 2, "seq_q": S, "dim_qk": D, "backward": True, "max_logit": True,
    "program": ["operand bias: f32 [h, q_idx]", "value = score + bias", "keep = q_idx >= kv_idx"],
}  # fmt: skip


@pytest.fixture(scope="module")
def attention():
    return scoremod.Attention(PROBLEM, backend="cpu")


@pytest.fixture
def arrays(rng):
    q, k, v = (rng.standard_normal((B, S, heads, D)).astype(np.float32) for heads in (H, 2, 2))
    return q, k, v, {"bias": rng.standard_normal((H, S)).astype(np.float32)}


def unwritten(array):
    return np.full_like(array, 7)


def test_results_are_written_to_the_callers_arrays(attention, arrays):
    want = attention.forward(*arrays, return_lse=True, return_max_logit=True)
    out = tuple(map(unwritten, want))
    got = attention.forward(*arrays, return_lse=True, return_max_logit=True, out=out)
    assert all(mine is given for mine, given in zip(got, out, strict=True))
    for mine, other in zip(got, want):
        np.testing.assert_array_equal(mine, other)
    o = unwritten(want[0])
    assert attention.forward(*arrays, out=o) is o and attention.forward(*arrays, out=(o,)) is o
    np.testing.assert_array_equal(o, want[0])
    lse = unwritten(want[1])
    fresh, same = attention.forward(*arrays, return_lse=True, out=(None, lse))
    assert same is lse and fresh is not o
    np.testing.assert_array_equal(fresh, want[0])


def test_gradients_are_written_to_the_callers_arrays(attention, arrays):
    o, lse = attention.forward(*arrays, return_lse=True)
    given = (*arrays[:3], o, lse, np.ones_like(o), arrays[3])
    want = attention.backward(*given)
    out = scoremod.Gradients(*map(unwritten, want[:3]), {"bias": unwritten(want.d_operands["bias"])})
    got = attention.backward(*given, out=out)
    assert all(mine is theirs for mine, theirs in zip(got[:3], out[:3])) and got.d_operands["bias"] is out.d_operands["bias"]
    for mine, other in zip((*got[:3], got.d_operands["bias"]), (*want[:3], want.d_operands["bias"])):
        np.testing.assert_array_equal(mine, other)
    some = attention.backward(*given, out=scoremod.Gradients(None, out.dk, None, None))
    assert some.dk is out.dk
    np.testing.assert_array_equal(some.dq, want.dq)


def test_of_one_call(arrays):
    q, k, v, _ = arrays
    want, o, workspace = scoremod.attention(q, k, v), unwritten(q), scoremod.Workspace()
    assert scoremod.attention(q, k, v, out=o, workspace=workspace) is o
    np.testing.assert_array_equal(o, want)
    o, lse = scoremod.attention(q, k, v, return_lse=True, out=(o, None))
    assert lse.shape == (B, H, S)


def test_a_part_of_a_larger_array(arrays):
    """An output may be a strided view, if the problem says its strides."""
    q, k, v, operands = arrays
    whole = np.full((B, S, H, 2 * D), 7, np.float32)
    strides = {axis: whole.strides[i] // 4 for i, axis in enumerate(("batch", "sequence", "head", "dim"))}
    attention = scoremod.Attention(PROBLEM | {"o": {"strides": strides}}, backend="cpu")
    attention.forward(q, k, v, operands, out=whole[..., :D])
    np.testing.assert_array_equal(whole[..., :D], attention.forward(q, k, v, operands))
    assert (whole[..., D:] == 7).all()


def read_only(array):
    array.flags.writeable = False
    return array


O_SHAPE, LSE_SHAPE = (B, S, H, D), (B, H, S)
MISUSES = {
    "dtype": (lambda q: np.empty(O_SHAPE, np.float64), "out: o: expected dtype float32"),
    "shape": (lambda q: np.empty((B, S, H, D + 1), np.float32), r"out: o: expected shape \(2, 33, 4, 8\), found \(2, 33, 4, 9\)"),
    "strides": (lambda q: np.empty((B, H, S, D), np.float32).swapaxes(1, 2), "out: o: expected strides"),
    "one row for all": (lambda q: np.lib.stride_tricks.as_strided(np.empty(D, np.float32), O_SHAPE, (0, 0, 0, 4)), "out: o: expected strides"),
    "read-only": (lambda q: read_only(np.empty(O_SHAPE, np.float32)), "out: o: expected an array that can be written, found a read-only one"),
    "broadcast": (lambda q: np.broadcast_to(np.float32(0), O_SHAPE), "out: o: expected an array that can be written"),
    "a list": (lambda q: [[1.0]], r"out: o: expected a NumPy array, found list"),
    "a number": (lambda q: np.float32(0), "out: o: expected a NumPy array, found float32"),
    "an input": (lambda q: q, "o.? overlaps .?q"),
    "a part of an input": (lambda q: q[::1].view(), "o.? overlaps .?q"),
    "too many": (lambda q: (np.empty_like(q), None), "out: expected an array for o, found 2 of them"),
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_misuse_of_an_output(attention, arrays, misuse):
    make, message = MISUSES[misuse]
    before = arrays[0].copy()
    with pytest.raises(scoremod.InvalidArgumentError, match=message):
        attention.forward(*arrays, out=make(arrays[0]))
    np.testing.assert_array_equal(arrays[0], before)


@pytest.mark.parametrize(
    "out, message",
    [
        (lambda o, lse: o, "out: expected a tuple of arrays or None, one for each of o, lse, found ndarray"),
        (lambda o, lse: (o,), "one for each of o, lse, found 1 of them"),
        (lambda o, lse: (lse, o), r"out: o: expected shape \(2, 33, 4, 8\), found \(2, 4, 33\)"),
        (lambda o, lse: (o, lse[:1]), r"out: lse: expected shape \(2, 4, 33\), found \(1, 4, 33\)"),
        (lambda o, lse: (o, lse.astype(np.float16)), "out: lse: expected dtype float32"),
        (lambda o, lse: (o, o.reshape(-1)[: lse.size].reshape(lse.shape)), "overlaps"),
    ],
)
def test_misuse_of_several_outputs(attention, arrays, out, message):
    results = attention.forward(*arrays, return_lse=True)
    with pytest.raises(scoremod.InvalidArgumentError, match=message):
        attention.forward(*arrays, return_lse=True, out=out(*results))


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda g: g[:3], r"out: expected scoremod.Gradients\(dq, dk, dv, d_operands\) of arrays or None, found tuple"),
        (lambda g: g.dq, "out: expected scoremod.Gradients.*found ndarray"),
        (lambda g: g._replace(dq=g.dk), r"out: dq: expected shape \(2, 33, 4, 8\), found \(2, 33, 2, 8\)"),
        (lambda g: g._replace(dv=g.dk), "overlaps"),
        (lambda g: g._replace(d_operands={"slopes": g.dq}), "out: d_operands: expected names among .*bias.*found 'slopes'"),
        (lambda g: g._replace(d_operands={"bias": g.dq}), "out: gradient of operand 'bias': expected shape"),
        (lambda g: g._replace(d_operands=g.dq), "out: d_operands: expected a dict"),
        (lambda g: g._replace(dk=g.dk[::-1, ::-1]), "out: dk: expected strides"),
        (lambda g: g._replace(dk=read_only(g.dk)), "out: dk: expected an array that can be written"),
    ],
)
def test_misuse_of_gradients(attention, arrays, change, message):
    o, lse = attention.forward(*arrays, return_lse=True)
    given = (*arrays[:3], o, lse, np.ones_like(o), arrays[3])
    gradients = attention.backward(*given)
    with pytest.raises(scoremod.InvalidArgumentError, match=message):
        attention.backward(*given, out=change(gradients))


def test_gradients_over_what_the_call_reads(attention, arrays):
    o, lse = attention.forward(*arrays, return_lse=True)
    d_o = np.ones_like(o)
    before = [array.copy() for array in (*arrays[:3], o, d_o)]
    for out, message in ((arrays[0], "dq.? overlaps .?q"), (o, "dq.? overlaps .?o"), (d_o, "dq.? overlaps .?d_o")):
        with pytest.raises(scoremod.InvalidArgumentError, match=message):
            attention.backward(*arrays[:3], o, lse, d_o, arrays[3], out=scoremod.Gradients(out, None, None, None))
    for array, was in zip((*arrays[:3], o, d_o), before):
        np.testing.assert_array_equal(array, was)


def test_bits_of_another_dtype(rng):
    """As of inputs, bfloat16 may be uint16 that holds its bits."""
    problem = {"batch": 1, "heads_q": 1, "seq_q": 4, "dim_qk": 8, "dtype": "bf16"}
    attention = scoremod.Attention(problem, backend="cpu")
    q = rng.integers(0x3F80, 0x4000, (1, 4, 1, 8)).astype(np.uint16)
    out = np.zeros_like(q)
    assert attention.forward(q, q, q, out=out) is out
    np.testing.assert_array_equal(out, attention.forward(q, q, q))
    with pytest.raises(scoremod.InvalidArgumentError, match="out: o: expected dtype .*uint16"):
        attention.forward(q, q, q, out=np.zeros(q.shape, np.float32))


def test_calls_share_a_workspace(attention, arrays):
    """It grows to what the largest call needs, stays, and changes no result."""
    workspace = scoremod.Workspace()
    o, lse = attention.forward(*arrays, return_lse=True)
    given = (*arrays[:3], o, lse, np.ones_like(o), arrays[3])
    want, sizes = attention.backward(*given), []
    for _ in range(3):
        np.testing.assert_array_equal(attention.forward(*arrays, workspace=workspace), o)
        got = attention.backward(*given, workspace=workspace)
        np.testing.assert_array_equal(got.dk, want.dk)
        np.testing.assert_array_equal(got.d_operands["bias"], want.d_operands["bias"])
        sizes.append((workspace.nbytes, workspace._memory.ctypes.data))
    assert len(set(sizes)) == 1 and workspace.nbytes >= attention.backward_workspace_bytes > 0
    assert f"{workspace.nbytes} bytes" in repr(workspace)


def test_a_workspace_is_used_by_one_call_at_a_time(attention, arrays):
    workspace = scoremod.Workspace()
    with workspace.taken(100) as buffer:
        assert buffer.bytes == 100 and buffer.data % 64 == 0
        with pytest.raises(scoremod.InvalidArgumentError, match="workspace: expected one that no other call is using"):
            attention.forward(*arrays, workspace=workspace)
    attention.forward(*arrays, workspace=workspace)
    with pytest.raises(scoremod.InvalidArgumentError):  # a call that fails leaves it free
        attention.forward(arrays[0][:1], *arrays[1:], workspace=workspace)
    with pytest.raises(scoremod.InvalidArgumentError, match="overlaps"):
        attention.forward(*arrays, out=arrays[0], workspace=workspace)
    attention.forward(*arrays, workspace=workspace)


def test_threads_with_workspaces_of_their_own(attention, arrays):
    want, got = attention.forward(*arrays), {}

    def work(number):
        workspace = scoremod.Workspace()
        got[number] = [attention.forward(*arrays, workspace=workspace) for _ in range(20)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 4 and all(np.array_equal(each, want) for results in got.values() for each in results)


@pytest.mark.parametrize("wrong", [np.empty(10**6, np.uint8), 100, "workspace", Workspace])
def test_misuse_of_a_workspace(attention, arrays, wrong):
    with pytest.raises(scoremod.InvalidArgumentError, match="workspace: expected a scoremod.Workspace, found"):
        attention.forward(*arrays, workspace=wrong)


def test_a_copy_of_a_workspace_is_another(attention, arrays):
    workspace = scoremod.Workspace()
    attention.forward(*arrays, workspace=workspace)
    for other in (copy.copy(workspace), copy.deepcopy(workspace), pickle.loads(pickle.dumps(workspace))):
        assert other is not workspace and other.nbytes == 0
