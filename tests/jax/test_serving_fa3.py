"""bench/serving/beside_fa3.py: what is timed as FlashAttention-3 computes what scoremod computes, and its times stand beside those of the report."""

import json
import sys
import types
from pathlib import Path

import jax.numpy as jnp
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench" / "serving"))

import batches
import beside_fa3

from scoremod.jax import flex_attention

BATCH = batches.Batch((40, 37), (4, 4), page=4, heads=4, kv_heads=2)


def stand_in(mask):
    """Stands in for FlashAttention-3, which runs on Hopper alone; refuses more than two splits."""

    def call(q, k, v, *, cache_seqlens, page_table, softmax_scale, is_causal, num_splits):
        if num_splits > 2:
            raise ValueError("too many splits\nand more")
        assert is_causal
        return flex_attention(q, k, v, None, mask, page_table=page_table, lengths=cache_seqlens, scale=softmax_scale)

    return types.SimpleNamespace(flash_mha_with_kvcache=call)


def test_the_fastest_number_of_splits_is_taken(monkeypatch):
    monkeypatch.setitem(sys.modules, "flash_attn3_jax", stand_in("causal_bottom_right"))
    found = beside_fa3.measured(BATCH, 3)
    assert found["reference_ms"] > 0 and found["ours_ms"] > 0 and found["splits"] in (1, 2)


def test_what_computes_something_else_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "flash_attn3_jax", stand_in(None))
    monkeypatch.setattr(beside_fa3, "SPLITS", (1, 2))
    assert "from scoremod's" in beside_fa3.measured(BATCH, 3)["refused"]


def test_reasons_are_kept(monkeypatch):
    monkeypatch.setitem(sys.modules, "flash_attn3_jax", stand_in("causal_bottom_right"))
    monkeypatch.setattr(beside_fa3, "SPLITS", (4,))
    assert beside_fa3.measured(BATCH, 3) == {"refused": "too many splits"}


@pytest.mark.parametrize("other", [{"dim": 64}, {"dtype_kv": "float8_e4m3fn"}, {"queries": (4, 5)}, {"dim": 576, "dim_v": 512, "kv_heads": 1}])
def test_only_what_its_wheel_has_kernels_for_is_asked(other):
    assert beside_fa3.sayable(BATCH)
    assert not beside_fa3.sayable(batches.dataclasses.replace(BATCH, **other))


def test_pages_hold_each_sequence():
    _, k, _, table, lengths = beside_fa3.tensors(BATCH, 3)
    assert k.shape == (20, 4, 2, 128) and sorted(jnp.ravel(table).tolist()) == list(range(20)) and lengths.tolist() == [40, 37]


def test_times_are_scaled_to_the_report(tmp_path, monkeypatch):
    name = "256 of 16 to 512"
    rows = [
        {"case": name, "commit": "abc", "implementation": "scoremod", "ms": 2.0, "of_copy": 0.8},
        {"case": "64 of 8192", "implementation": "scoremod", "refused": "no"},
    ]
    path = tmp_path / "report.json"
    path.write_text(json.dumps({"seed": 3, "versions": {}, "results": rows}))
    monkeypatch.setattr(beside_fa3, "measured", lambda batch, seed: {"reference_ms": 1.0, "ours_ms": 4.0, "splits": 2})
    monkeypatch.setattr(beside_fa3.metadata, "version", lambda name: "1")
    for _ in range(2):
        monkeypatch.setattr(sys, "argv", ["", str(path)])
        beside_fa3.main()
    added = json.loads(path.read_text())["results"][2:]
    assert added == [
        {"case": name, "commit": "abc", "implementation": "flash-attention-3", "reference_ms": 1.0, "ours_ms": 4.0, "splits": 2, "ms": 0.5, "of_copy": 3.2}
    ]
