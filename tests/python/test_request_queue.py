"""The request queue answers each call once, with what the definition says, by futures and under asyncio."""

import asyncio
import subprocess
import sys
import threading
import time
import weakref

import dense_definition as dense
import numpy as np
import pytest
from test_attention import assert_agrees, draw, problem_for, wide

import scoremod
from scoremod import request_queue

CAP = "value = 2.0 * tanh(score / 2.0)"


def cap(s, b, h, i, j):
    return 2 * np.tanh(s / 2)


@pytest.fixture
def attention():
    return scoremod.Attention(problem_for(CAP, backward=True))


@pytest.fixture
def busy():
    """A call that takes long beside the others, and its arrays."""
    q = np.ones((1, 2048, 4, 64), np.float32)
    return scoremod.Attention({"batch": 1, "heads_q": 4, "seq_q": 2048, "dim_qk": 64}, threads=1), q, q, q


def test_replies_are_what_the_definition_says(fresh_rng, attention):
    batches = [draw(fresh_rng) for _ in range(20)]
    with scoremod.RequestQueue(threads=2, capacity=3) as queue:
        replies = [queue.forward(attention, *batch, return_lse=True) for batch in batches]
    for batch, reply in zip(batches, replies):
        found, truth, plain = reply.result(0), dense.attention(*wide(*batch), cap, None), dense.attention(*batch, cap, None)
        assert_agrees(found[0], truth[0], plain[0])
        assert_agrees(found[1], truth[1], plain[1])


def test_a_backward_is_that_of_the_attention(fresh_rng, attention):
    q, k, v = draw(fresh_rng)
    o, lse = attention.forward(q, k, v, return_lse=True)
    d_o = fresh_rng.standard_normal(o.shape).astype(np.float32)
    wanted = attention.backward(q, k, v, o, lse, d_o)
    queue = scoremod.RequestQueue()
    out = scoremod.Gradients(np.empty_like(q), None, None, None)
    found = queue.backward(attention, q, k, v, o, lse, d_o, out=out).result()
    assert found.dq is out.dq
    for name in ("dq", "dk", "dv"):
        assert np.abs(getattr(wanted, name)).max() > 0
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))


def test_it_is_awaited(fresh_rng, attention):
    batches = [draw(fresh_rng) for _ in range(5)]

    async def serve():
        queue = scoremod.RequestQueue()
        one = await queue.forward(attention, *batches[0])
        return [one, *await asyncio.gather(*[queue.forward(attention, *batch) for batch in batches[1:]])]

    for batch, found in zip(batches, asyncio.run(serve())):
        np.testing.assert_array_equal(found, attention.forward(*batch))


def test_the_arrays_live_until_the_reply(attention, busy):
    queue = scoremod.RequestQueue()
    for _ in range(6):
        queue.forward(*busy)
    q, k, v = draw(np.random.default_rng(1))
    wanted, seen = attention.forward(q, k, v), weakref.ref(q)
    reply = queue.forward(attention, q, k, v)
    del q, k, v, attention
    assert seen() is not None
    np.testing.assert_array_equal(reply.result(), wanted)
    queue.drain()
    assert seen() is None and not request_queue._open_requests


def test_a_full_queue_refuses(attention, busy):
    queue = scoremod.RequestQueue(capacity=1, refuse_when_full=True)
    replies = [queue.forward(*busy) for _ in range(8)]
    queue.drain()
    refused = [reply.exception() for reply in replies if reply.exception()]
    assert refused and len(refused) < 8
    assert all(isinstance(error, scoremod.QueueFullError) and "1 requests wait to begin" in str(error) for error in refused)


def test_what_has_not_begun_is_refused_after_a_shut_down(attention, busy):
    queue = scoremod.RequestQueue()
    running, *_, waiting = [queue.forward(*busy) for _ in range(6)]
    assert not running.cancel() and not waiting.cancel()
    queue.shut_down()
    later = queue.forward(attention, *draw(np.random.default_rng(0)))
    assert running.done() and isinstance(later.exception(0), scoremod.QueueShutDownError)
    with pytest.raises(scoremod.QueueShutDownError, match="shut down before the request began"):
        waiting.result(0)
    queue.shut_down()


def test_mistakes_are_told_at_once(attention):
    q, k, v = draw(np.random.default_rng(0))
    queue = scoremod.RequestQueue()
    for wrong, expected in [
        (lambda: queue.forward(attention, q[:1], k, v), "q: expected shape"),
        (lambda: queue.forward(attention.problem, q, k, v), "attention: expected a scoremod.Attention, found dict"),
        (lambda: queue.forward(attention, q, k, v, out=q.astype(np.float64)), "out: o: expected dtype"),
        (lambda: scoremod.RequestQueue(capacity=0), "capacity: expected a whole number of at least 1, found 0"),
        (lambda: scoremod.RequestQueue(threads=1.5), "threads: expected a whole number of at least 1, found 1.5"),
    ]:
        with pytest.raises(scoremod.InvalidArgumentError, match=expected):
            wrong()
    assert not request_queue._open_requests


def test_a_callback_may_submit_but_not_drain(attention, busy):
    q, k, v = draw(np.random.default_rng(0))
    queue, said, second = scoremod.RequestQueue(), [], []

    def on_reply(reply):
        try:
            queue.drain()
        except scoremod.InvalidArgumentError as error:
            said.append(str(error))
        second.append(queue.forward(attention, q, k, v))

    for _ in range(3):
        queue.forward(*busy)
    queue.forward(attention, q, k, v).add_done_callback(on_reply)  # before its turn comes
    queue.drain()
    np.testing.assert_array_equal(second[0].result(), attention.forward(q, k, v))
    assert "found one in a reply" in said[0]


def test_the_last_reference_may_end_in_a_callback(attention, busy):
    held, ended = [scoremod.RequestQueue()], threading.Event()

    def on_reply(reply):
        held.clear()
        ended.set()

    gone = weakref.ref(held[0])
    reply = held[0].forward(*busy)
    reply.add_done_callback(on_reply)
    assert ended.wait(60)
    deadline = time.monotonic() + 60
    while gone() is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert gone() is None


SCRIPT = """
import os, sys, numpy as np, scoremod
q = np.ones((1, 2048, 4, 64), np.float32)
attention = scoremod.Attention({"batch": 1, "heads_q": 4, "seq_q": 2048, "dim_qk": 64}, threads=1)
queue = scoremod.RequestQueue(threads=2)
replies = [queue.forward(attention, q, q, q) for _ in range(6)]
if sys.argv[1] == "fork":
    child = os.fork()
    try:
        queue.drain()
    except scoremod.InvalidArgumentError as error:
        print(error, flush=True)
        del queue, replies
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0
print("end", flush=True)
"""


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("way", ["exit", "fork"])
def test_a_process_ends_with_requests_that_wait(way):
    done = subprocess.run([sys.executable, "-c", SCRIPT, way], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "end"
    if way == "fork":
        assert "found one made before fork()" in done.stdout
