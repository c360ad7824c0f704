"""The predicted table of bench/NOTES.md is what bench/jax/predict_sharding.py makes of the record today, and follows from numbers done by hand."""

import importlib.util
import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "bench" / "jax" / "predict_sharding.py"
spec = importlib.util.spec_from_file_location("predict_sharding", SCRIPT)
predict = importlib.util.module_from_spec(spec)
spec.loader.exec_module(predict)


def test_the_page_has_todays_table():
    page = predict.PAGE.read_text(encoding="utf-8")
    part = predict.text(json.loads(predict.RECORD.read_text(encoding="utf-8")))
    assert predict.with_text(page, part) == page, "run bench/jax/predict_sharding.py --write"
    assert predict.with_text(page, part + "x") != page


def test_numbers_by_hand():
    record = {
        "commit": "abc",
        "options": {"batch": 2, "heads": 4, "seq": 1000},
        "results": [
            {"case": "causal", "implementation": "scoremod", "direction": "forward_and_backward", "ms": 8.0},
            {"case": "causal", "implementation": "dense", "direction": "forward_and_backward", "ms": 80.0},
            {"case": "plain", "implementation": "scoremod", "direction": "forward_and_backward", "ms": 800.0},
        ],
    }
    # 8 ms for 2 * 4 * 500000 pairs.
    rate = predict.seconds_per_pair(record)
    assert rate == pytest.approx(2e-9)
    model = predict.Model(seq=8000, heads=4, heads_kv=2, dim=10, gpus_of_host=2, link_in_host=1e6, link_between_hosts=1e5)
    two, four = (predict.ring(model, count, rate) for count in (2, 4))
    # 4 heads of 32 million pairs, shared by the GPUs.
    assert two.compute == pytest.approx(0.128) and four.compute == pytest.approx(0.064)
    # Keys and values are a part of 8000 tokens of 2 heads of 10 elements. All steps but one send 2 bytes forward, and 2 and 4 backward. With
    # two shards the gradients are one part's, of 2 bytes.
    assert two.sent == 2 * 4000 * 2 * 10 * (4 + 2) and four.sent == 2 * 2000 * 2 * 10 * 3 * 8
    assert two.transfer == pytest.approx(0.96) and four.transfer == pytest.approx(19.2)
    assert four.together() == pytest.approx(19.2) and four.apart() == pytest.approx(19.264)
    # Three of four parts, 2 bytes forward and 2 backward.
    assert predict.all_gather(model, 4, rate).sent == 3 / 4 * 2 * 8000 * 2 * 10 * 4
    assert predict.gathered_bytes(model) == 2 * 8000 * 2 * 10 * 2
