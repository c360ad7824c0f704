"""Memory and threads: arrays and attentions may go at any time, and calls may run side by side."""

import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import numpy as np

import scoremod

PROBLEM = {
    "batch": 2,
    "heads_q": 2,
    "seq_q": 33,
    "dim_qk": 8,
    "backward": True,
    "program": "operand slope: f32 [h]; value = score - slope * f32(abs(q_idx - kv_idx)); keep = kv_idx <= q_idx",
}
SHAPE = (2, 33, 2, 8)


def draw(seed):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(SHAPE).astype(np.float32) for _ in range(3)], {"slope": rng.random(2).astype(np.float32)}


def compute(compiled, seed):
    """Everything that a forward and a backward make, as one tuple of arrays."""
    arrays, operands = draw(seed)
    o, lse = compiled.forward(*arrays, operands, return_lse=True)
    gradients = compiled.backward(*arrays, o, lse, o, operands)
    return o, lse, gradients.dq, gradients.dk, gradients.dv, gradients.d_operands["slope"]


def test_results_outlive_everything_else():
    compiled = scoremod.Attention(PROBLEM)
    results = compute(compiled, 1)
    expected = [array.copy() for array in results]
    del compiled
    gc.collect()
    junk = [np.full(SHAPE, np.nan, np.float32) for _ in range(50)]
    for found, wanted in zip(results, expected):
        np.testing.assert_array_equal(found, wanted)
    assert len(junk) == 50


def test_temporary_inputs_live_through_the_call():
    compiled = scoremod.Attention(PROBLEM)
    (q, k, v), operands = draw(2)
    expected = compiled.forward(q, k, v, operands)
    found = compiled.forward(q + 0, k + 0, v + 0, {"slope": operands["slope"] + 0})
    np.testing.assert_array_equal(found, expected)


def test_read_only_inputs_are_fine_and_inputs_stay_as_they_were():
    compiled = scoremod.Attention(PROBLEM)
    (q, k, v), operands = draw(3)
    before = [array.copy() for array in (q, k, v, operands["slope"])]
    for array in (q, k, v, operands["slope"]):
        array.flags.writeable = False
    compiled.forward(q, k, v, operands)
    for array, wanted in zip((q, k, v, operands["slope"]), before):
        np.testing.assert_array_equal(array, wanted)


def test_an_attention_is_freed_with_its_last_reference():
    compiled = scoremod.Attention(PROBLEM)
    alive = weakref.ref(compiled)
    del compiled
    assert alive() is None


def test_copies_and_pickles_have_their_own_handle():
    compiled = scoremod.Attention(PROBLEM, backend="reference")
    others = [copy.copy(compiled), copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))]
    expected = compute(compiled, 4)
    del compiled
    gc.collect()
    for other in others:
        assert other.backend == "reference"
        for found, wanted in zip(compute(other, 4), expected):
            np.testing.assert_array_equal(found, wanted)


def test_threads_share_an_attention():
    compiled = scoremod.Attention(PROBLEM)
    expected = [compute(compiled, seed) for seed in range(8)]
    problems = []

    def work(seed):
        try:
            for _ in range(5):
                for found, wanted in zip(compute(compiled, seed), expected[seed]):
                    np.testing.assert_array_equal(found, wanted)
                scoremod.Attention(PROBLEM)
        except BaseException as error:  # noqa: BLE001 (a thread must hand it to the test)
            problems.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


def test_errors_of_threads_do_not_mix():
    problems = []

    def work(number):
        for _ in range(50):
            try:
                scoremod.Attention({**PROBLEM, "program": f"value = nobody_{number}"})
                problems.append("accepted")
            except scoremod.InvalidArgumentError as error:
                if f"nobody_{number}'" not in str(error):
                    problems.append(str(error))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


# The threads are in the library nearly all the time: Python waits for none of them.
ENDS_DURING_CALLS = """
import threading, time
import numpy as np
import scoremod
compiled = scoremod.Attention({"batch": 2, "heads_q": 8, "seq_q": 400, "dim_qk": 64, "program": "value = tanh(score)"})
q = np.ones((2, 400, 8, 64), np.float32)
started = [threading.Event() for _ in range(3)]

def work(event):
    while True:
        compiled.forward(q, q, q)
        event.set()

for event in started:
    threading.Thread(target=work, args=(event,), daemon=True).start()
for event in started:
    event.wait()
"""


def test_a_process_ends_while_daemon_threads_are_in_calls():
    package = str(Path(scoremod.__file__).resolve().parents[1])
    for _ in range(5):
        run = subprocess.run([sys.executable, "-c", ENDS_DURING_CALLS], env=os.environ | {"PYTHONPATH": package}, capture_output=True, text=True)
        assert run.returncode == 0, (run.returncode, run.stderr[-2000:])
