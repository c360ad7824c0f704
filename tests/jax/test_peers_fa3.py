"""bench/peers/fa3.py: what is timed as FlashAttention-3 computes what scoremod computes, and its times stand beside those of measure.py's report."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench" / "peers"))

import fa3

SIZES = {"shape": "", "batch": 2, "heads": 4, "kv_heads": 2, "queries": 64, "keys": 64, "dim": 16, "dim_v": 16, "dtype": "float32"}
CASES = {
    "full": {},
    "causal": {},
    "window_512": {"window": 8},
    "varlen_one_long": {"batch": 1, "lengths": [40, 4, 20]},
    "varlen_one_long_causal": {"batch": 1, "lengths": [40, 4, 20]},
}


def case_of(modifier):
    return {**SIZES, "modifier": modifier, **CASES[modifier]}


def ours_of(modifier):
    """Stands in for FlashAttention-3, which runs on Hopper alone: scoremod's answer to a case of this modifier."""
    return lambda case, ends: fa3.ours({**case, "modifier": modifier}, ends, "cpu")


@pytest.mark.parametrize("modifier", CASES)
def test_both_directions_are_timed(modifier):
    found = fa3.measured(case_of(modifier), "cpu", ours_of(modifier))
    assert all(times["reference_ms"] > 0 and times["ours_ms"] > 0 for times in found.values()) and set(found) == {"forward", "backward"}


def test_what_computes_something_else_is_refused():
    found = fa3.measured(case_of("causal"), "cpu", ours_of("full"))
    assert all("from scoremod's" in what["refused"] for what in found.values())


def test_a_library_that_is_not_there_is_a_reason():
    assert "flash_attn3_jax" in fa3.measured(case_of("causal"), "cpu")["forward"]["refused"]


def test_only_what_its_wheel_has_kernels_for_is_asked():
    whole = {**case_of("causal"), "dim": 128, "dim_v": 128}
    assert fa3.sayable(whole)
    assert not any(fa3.sayable({**whole, **other}) for other in ({"dim": 64, "dim_v": 64}, {"dim": 192}, {"modifier": "documents"}))


def test_times_are_scaled_to_the_report(tmp_path, monkeypatch):
    def rows(case, direction, ms):
        return {"case": case, "direction": direction, "implementation": "scoremod", "ms": ms}

    case = {**case_of("causal"), "dim": 128, "dim_v": 128}
    results = [rows("causal", "forward", 2.0), rows("causal", "backward", 4.0), rows("documents", "forward", 1.0)]
    report = {"versions": {}, "cases": {"causal": case, "documents": {**case, "modifier": "documents"}}, "results": results}
    path = tmp_path / "peers.json"
    path.write_text(json.dumps(report))
    answers = {"forward": {"reference_ms": 1.0, "ours_ms": 4.0}, "backward": {"refused": "no"}}
    asked = []
    monkeypatch.setattr(fa3, "measured", lambda case, backend: asked.append(case) or answers)
    for _ in range(2):
        monkeypatch.setattr(sys, "argv", ["fa3.py", str(path)])
        fa3.main()
    added = json.loads(path.read_text())["results"][3:]
    common = {"case": "causal", "implementation": "fa3"}
    assert added == [{**common, "direction": "forward", "ms": 0.5, **answers["forward"]}, {**common, "direction": "backward", "refused": "no"}]
    assert asked == [case], "what a report has isn't measured again"
