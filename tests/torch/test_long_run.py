"""The long run sees what grows, and calls that are right keep the process as it was."""

import gc
import importlib.util
import json
import sys
from pathlib import Path

import pytest

from scoremod import cache, library
from scoremod.bounded_cache import BoundedCache
from scoremod.torch import function_texts, repeated_calls

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "device" / "long_run.py"


@pytest.fixture
def long_run(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))  # the script adds to it
    spec = importlib.util.spec_from_file_location("long_run", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def samples(**series):
    return [dict(zip(series, values, strict=True)) for values in zip(*series.values(), strict=True)]


def test_what_grows_is_named(long_run):
    steady = [5, 9, 9, 9, 9, 9, 8, 9]
    found = long_run.growth(samples(memory=[100, 200, 200, 201, 202, 203, 203, 204], files=steady, threads=[4, 4, 4, 4, 4, 4, 4, 5], mappings=steady))
    assert long_run.grown(found) == ["threads"]
    found = long_run.growth(samples(memory=[100, 200, 200, 200, 200, 200, 206, 206], files=[3, 3, 3, 3, 3, 3, 3, 4], threads=steady, mappings=steady))
    assert long_run.grown(found) == ["memory", "files"]


@pytest.fixture
def usual_variants(monkeypatch):
    """Has the limits of remembered calls as they were before the test."""
    for name in ("_MAX_SIZES", "_MAX_VARIANTS"):
        monkeypatch.setattr(repeated_calls, name, getattr(repeated_calls, name))


def test_caches_can_be_small(long_run, usual_variants):
    kept = [each for each in gc.get_objects() if isinstance(each, BoundedCache)]
    before, limits = cache.statistics(), [each._limit for each in kept]
    try:
        long_run.keep_at_most(3)
        found = cache.statistics()
        assert found["attentions"]["limit"] == found["plans"]["limits"]["plans"] == 3
        own = BoundedCache(9)
        long_run.keep_at_most(2)
        for number in range(5):
            own[number] = number
        assert list(own) == [3, 4] and kept and (repeated_calls._MAX_SIZES, repeated_calls._MAX_VARIANTS) == (2, 2)
    finally:
        cache.set_limits(attentions=before["attentions"]["limit"], plans=before["plans"]["limits"]["plans"])
        for each, limit in zip(kept, limits, strict=True):
            each._limit = limit


def test_caches_of_functools_are_emptied_beyond_a_number(long_run):
    found = long_run.limited_functions()
    assert function_texts.text_of in found and library.load not in found  # which keeps the one library
    function_texts.text_of.cache_clear()
    for code in (compile(f"{number}", "", "eval") for number in range(3)):
        function_texts.text_of(code)
    long_run.forget_beyond(3)
    assert function_texts.text_of.cache_info().currsize == 3
    long_run.forget_beyond(2)
    assert function_texts.text_of.cache_info().currsize == 0


def test_a_short_run(long_run, tmp_path, capsys):
    record = tmp_path / "record.json"
    record.write_text('[\n{"machine": "another", "device": "cpu"}\n]\n')
    # Caches are not full after seconds: memory may grow yet.
    assert long_run.main(["0.2", str(record), "7", "--seconds-between", "0.01", "--machine", "this"]) in (0, 1)
    other, row = json.loads(record.read_text())
    assert other == {"machine": "another", "device": "cpu"}
    assert row["seed"] == 7 and row["samples"] >= 8 and sum(row["calls"].values()) > 8
    assert {"memory", "files", "threads", "mappings", "objects"} == set(row["second_and_last_quarter"])
    assert {"attentions", "plans", "plan_bytes", "plans_dropped", "trials"} == set(row["kept_in_second_and_last_quarter"])
    assert "seed 7, on cpu" in capsys.readouterr().out
