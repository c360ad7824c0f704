"""Caches of earlier calls are bounded, and stay whole where several threads add at once."""

import sys
import threading

import pytest
import torch

from scoremod.bounded_cache import BoundedCache
from scoremod.torch import checked_integers, eager_calls, execution, flex_attention, kept_traces

KEPT = [(eager_calls, "_kept"), (kept_traces, "_kept"), (execution, "_kept"), (checked_integers, "_checked")]


@pytest.fixture(autouse=True)
def threads_take_turns_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(work, count=8):
    """Runs work(number) in so many threads at once, and raises what one of them raised."""
    errors, begin = [], threading.Barrier(count)

    def run(number):
        begin.wait()
        try:
            work(number)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_the_oldest_entry_goes():
    cache = BoundedCache(2)
    cache["a"], cache["b"] = 1, 2
    cache["a"] = 3  # no new entry
    assert cache == {"a": 3, "b": 2}
    cache["c"] = 4
    assert cache == {"b": 2, "c": 4}
    cache.clear()
    cache["d"] = 5
    assert cache == {"d": 5}


def test_an_entry_that_adds_another_as_it_goes_does_not_wait_for_itself():
    cache = BoundedCache(1)

    class Last:
        def __del__(self):
            cache["of the end"] = 0

    cache["first"] = Last()
    cache["second"] = 1
    assert len(cache) == 1


@pytest.mark.parametrize(("module", "name"), KEPT)
def test_threads_may_add_to_a_full_cache(module, name):
    cache = getattr(module, name)
    before = dict(cache)

    def work(number):
        for i in range(20000):
            cache[number, i] = i

    try:
        in_threads(work)
        assert len(cache) <= 1024
    finally:
        cache.clear()
        for key, value in before.items():
            cache[key] = value


def test_threads_whose_calls_drop_each_others_get_right_numbers(random, monkeypatch):
    """Each call finds all caches full with others' kinds."""
    for module, name in KEPT:
        monkeypatch.setattr(module, name, BoundedCache(2))
    given = [[torch.randn(1, 2, 3 + n, 8, generator=random, requires_grad=True) for _ in range(3)] for n in range(8)]

    def attend(number):
        o = flex_attention(*given[number], lambda score, b, h, q_idx, kv_idx: score * (1 + number))
        return [o.detach(), *torch.autograd.grad(o.sum(), given[number])]

    expected = [attend(number) for number in range(8)]

    def work(number):
        for i in range(10):
            at = (number + i) % 8
            for found, wanted in zip(attend(at), expected[at]):
                assert torch.equal(found, wanted)

    in_threads(work)
