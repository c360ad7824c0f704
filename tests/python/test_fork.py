"""A forked child of a process that has used scoremod computes what its parent does, also while another thread is in a call."""

import itertools
import json
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import scoremod
from scoremod.bounded_cache import BoundedCache

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from forked_child import succeeds_in_child, while_another_thread

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

PROGRAM = "operand bias: f32 [h]\nvalue = tanh(score) + bias\nkeep = kv_idx <= q_idx"


def problem(seq):
    return {
        "batch": 2,
        "heads_q": 4,
        "seq_q": seq,
        "dim_qk": 32,
        "backward": True,
        "stats": True,
        "program": PROGRAM,
        "operands": [{"name": "bias", "shape": [4], "gradient": True}],
    }


def results(seq):
    rng = np.random.default_rng(seq)
    q, k, v, d_o = (rng.standard_normal((2, seq, 4, 32)).astype(np.float32) for _ in range(4))
    operands = {"bias": rng.standard_normal(4).astype(np.float32)}
    attention = scoremod.Attention(problem(seq))
    o, lse = attention.forward(q, k, v, operands, return_lse=True)
    gradients = attention.backward(q, k, v, o, lse, d_o, operands)
    return [o, lse, gradients.dq, gradients.dk, gradients.dv, gradients.d_operands["bias"]]


def expect_equal(found, expected):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_child_computes_what_its_parent_does():
    known, new = results(96), results(160)
    scoremod.cache.clear()
    expect_equal(results(96), known)

    def child():
        expect_equal(results(96), known)  # from the plans of its parent
        expect_equal(results(160), new)  # which it compiles itself
        scoremod.cache.clear()
        expect_equal(results(96), known)
        with scoremod.RequestQueue() as queue:  # of its own
            attention = scoremod.Attention(problem(96))
            q = np.zeros((2, 96, 4, 32), np.float32)
            reply = queue.forward(attention, q, q, q, {"bias": np.zeros(4, np.float32)})
            assert not np.any(reply.result())

    assert succeeds_in_child(child)
    expect_equal(results(160), new)


@pytest.mark.parametrize("compiles", [False, True])
def test_a_child_computes_while_another_thread_is_in_a_call(compiles):
    known, new = results(96), results(160)
    calls, sizes = itertools.count(), itertools.cycle(range(200, 232))

    def call():
        if compiles:
            scoremod.cache.clear()
        results(next(sizes) if compiles else 224)
        next(calls)

    def child():
        expect_equal(results(96), known)
        expect_equal(results(160), new)
        expect_equal(results(144), results(144))

    with while_another_thread(call):
        for _ in range(12):
            assert succeeds_in_child(child)
    assert next(calls) > 1
    expect_equal(results(96), known)


def test_a_child_waits_for_no_thread_of_its_parent(monkeypatch):
    attention, cache = scoremod.Attention(problem(96)), BoundedCache(4)
    expected = repr(scoremod.Attention(problem(96)))
    reached, go_on = threading.Barrier(3), threading.Event()
    child_asks = threading.Event()
    load = json.loads

    class SlowKey(str):
        def __hash__(self):
            if not child_asks.is_set():
                reached.wait()
                go_on.wait()
            return 1

    def slow(text):
        if not child_asks.is_set():
            reached.wait()
            go_on.wait()
        return load(text)

    monkeypatch.setattr("json.loads", slow)
    threads = [threading.Thread(target=repr, args=(attention,)), threading.Thread(target=cache.__setitem__, args=(SlowKey("a"), 1))]
    for thread in threads:
        thread.start()
    reached.wait()

    def child():
        child_asks.set()
        cache["b"] = 2
        assert repr(attention) == expected

    try:
        assert succeeds_in_child(child, seconds=20)
    finally:
        go_on.set()
        for thread in threads:
            thread.join()


SCRIPT = """
import os, sys
import numpy as np
import scoremod

q = np.ones((1, 64, 2, 16), np.float32)
attention = scoremod.Attention({"batch": 1, "heads_q": 2, "seq_q": 64, "dim_qk": 16})
queue = scoremod.RequestQueue()
assert np.all(queue.forward(attention, q, q, q).result() == 1)
child = os.fork()
assert np.all(attention.forward(q, q, q) == 1)
if child == 0:
    print("child done", flush=True)
    sys.exit(0)
print("child ended with", os.waitpid(child, 0)[1])
"""


def test_a_child_may_end_as_any_process_does():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", SCRIPT], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.split("\n")[:2]) == (0, ["child done", "child ended with 0"]), done.stderr
