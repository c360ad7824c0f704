"""Compiled attentions are kept and shared, counted, bounded and dropped."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import scoremod

PROBLEM = {"batch": 1, "heads_q": 1, "seq_q": 5, "dim_qk": 8, "backward": True, "program": "value = tanh(score)"}


@pytest.fixture(autouse=True)
def empty_cache():
    limit = scoremod.cache.statistics()["attentions"]["limit"]
    scoremod.cache.clear()
    yield
    scoremod.cache.set_limits(attentions=limit)


def counts_of(action):
    """The increase of the counts by an action: of attentions, and of what was compiled."""
    before = scoremod.cache.statistics()
    action()
    after = scoremod.cache.statistics()
    return {name: after[part][name] - before[part][name] for part in ("attentions", "compiled") for name in after[part] if name != "limit"}


def test_an_equal_attention_is_compiled_once():
    counts = counts_of(lambda: [scoremod.Attention(PROBLEM) for _ in range(3)])
    assert (counts["misses"], counts["hits"], counts["entries"]) == (1, 2, 1)
    assert (counts["problems"], counts["forwards"], counts["backwards"]) == (1, 1, 1)
    # Other sizes and options are other attentions, of the same compile.
    for make in (lambda: scoremod.Attention({**PROBLEM, "seq_q": 6}), lambda: scoremod.Attention(PROBLEM, threads=1)):
        counts = counts_of(make)
        assert (counts["misses"], counts["problems"], counts["forwards"]) == (1, 0, 1)


def test_one_call_compiles_once_for_every_scale():
    q = np.ones((1, 7, 1, 8), np.float32)
    k = np.random.default_rng(0).standard_normal(q.shape).astype(np.float32)
    scoremod.attention(q, k, k)
    results = []
    counts = counts_of(lambda: results.extend(scoremod.attention(q, k, k, scale=scale) for scale in (0.25, 1.0, 2.0)))
    assert counts["problems"] == 0
    for scale, got in zip((0.25, 1.0, 2.0), results):
        scores = scale * (q[0, :, 0] @ k[0, :, 0].T).astype(np.float64)
        p = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(got[0, :, 0], p @ k[0, :, 0], atol=1e-5)


def test_clear_drops_all_and_whoever_holds_one_keeps_it():
    held = scoremod.Attention(PROBLEM)
    scoremod.cache.clear()
    assert scoremod.cache.statistics()["attentions"]["entries"] == 0
    assert held.forward(*(np.ones((1, 5, 1, 8), np.float32) for _ in "qkv")).shape == (1, 5, 1, 8)
    assert counts_of(lambda: scoremod.Attention(PROBLEM))["problems"] == 1


def test_the_limit_holds():
    scoremod.cache.set_limits(attentions=2)
    counts = counts_of(lambda: [scoremod.Attention({**PROBLEM, "seq_q": n}) for n in (1, 2, 3)])
    assert (counts["evictions"], counts["entries"]) == (1, 2)
    with pytest.raises(scoremod.InvalidArgumentError, match="attentions: expected an integer"):
        scoremod.cache.set_limits(attentions=-1)


def test_threads_that_ask_together_compile_once():
    together = threading.Barrier(6)

    def work():
        together.wait()
        scoremod.Attention({**PROBLEM, "seq_q": 300})

    threads = [threading.Thread(target=work) for _ in range(6)]

    def run():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    counts = counts_of(run)
    assert counts["problems"] == counts["misses"] == 1 and counts["hits"] + counts["waits"] == 5


@pytest.mark.parametrize("value, limit, warned", [("3", 3, False), ("0", 0, False), ("", 256, False), ("many", 256, True)])
def test_the_environment_sets_the_limit(value, limit, warned):
    package = str(Path(scoremod.__file__).resolve().parents[1])
    run = subprocess.run(
        [sys.executable, "-c", "import scoremod; print(scoremod.cache.statistics()['attentions']['limit'])"],
        env=os.environ | {"PYTHONPATH": package, "SCOREMOD_CACHE_ATTENTIONS": value},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(run.stdout) == limit
    assert ("SCOREMOD_CACHE_ATTENTIONS: expected" in run.stderr) == warned
