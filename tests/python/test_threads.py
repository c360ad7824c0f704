"""How many CPU threads a call has: what it asks for, OpenMP's variable, and the bound of SCOREMOD_THREADS."""

import os

import numpy as np
import pytest

import scoremod

PROBLEM = {"batch": 2, "heads_q": 8, "seq_q": 256, "dim_qk": 32, "program": "value = score"}


@pytest.fixture(autouse=True)
def neither(monkeypatch):
    for name in ("OMP_NUM_THREADS", "SCOREMOD_THREADS"):
        monkeypatch.delenv(name, raising=False)


def threads_of(**options):
    """How many threads a call has memory for."""
    return scoremod.Attention(PROBLEM, **options).forward_workspace_bytes // scoremod.Attention(PROBLEM, threads=1).forward_workspace_bytes


def test_a_number_that_is_asked_for_comes_first(monkeypatch):
    assert threads_of(threads=3) == 3
    assert threads_of() == os.cpu_count() or threads_of() == len(os.sched_getaffinity(0))
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert threads_of() == 5 and threads_of(threads=3) == 3


def test_the_own_variable_bounds_all(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    monkeypatch.setenv("SCOREMOD_THREADS", "2")
    assert threads_of() == 2 and threads_of(threads=3) == 2
    monkeypatch.setenv("SCOREMOD_THREADS", "none")
    with pytest.raises(scoremod.InvalidArgumentError, match="SCOREMOD_THREADS: expected a number of CPU threads, at least 1, found 'none'"):
        scoremod.Attention(PROBLEM)


def test_no_number_depends_on_them(fresh_rng, monkeypatch):
    q, k, v = (fresh_rng.standard_normal((2, 256, 8, 32)).astype(np.float32) for _ in "qkv")
    results = []
    for threads in ("1", "3", "8"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        results.append(scoremod.Attention(PROBLEM).forward(q, k, v))
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)
