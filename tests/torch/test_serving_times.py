"""bench/serving: every batch means for scoremod what float64 attention makes of it, and what computes something else is not timed."""

import json
import random
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench" / "serving"))

import batches
import beside_flashinfer

SMALL = batches.batches(5, part=512)
COPIED = 1e9


def rows_of(batch, *implementations):
    data = beside_flashinfer.Tensors(batch, "cpu", 5)
    return beside_flashinfer.measured(data, implementations, random.Random(5), COPIED)


@pytest.mark.parametrize("name", SMALL)
def test_scoremod_is_right(name):
    (row,) = rows_of(SMALL[name], beside_flashinfer.scoremod_calls)
    assert row["error"] < beside_flashinfer.MOST_ERROR and row["ms"] > 0 and "refused" not in row


def test_a_batch_counts_what_it_reads():
    batch = batches.Batch((5, 3), (2, 1), heads=4, kv_heads=2, dim=8)
    assert batch.read_bytes == 8 * 2 * 8 * 2 * 2 and batch.flops == 2 * 4 * (4 + 5 + 3) * 16 and batch.pages == [1, 1]
    latent = batches.Batch((5,), (1,), kv_heads=1, dim=12, dim_v=8, heads=4)
    assert latent.read_bytes == 5 * 12 * 2 and latent.flops == 2 * 4 * 5 * 20
    assert batches.Batch((5,), (1,), kv_heads=1, dim=8, dtype_kv="float8_e4m3fn").read_bytes == 2 * 5 * 8


def test_wrong_results_are_not_timed():
    """The right implementation over another sequence's pages, and one that forgets the mask of several queries."""

    def other_pages(data):
        data.table = data.table.flip(0)
        calls = beside_flashinfer.scoremod_calls(data)
        data.table = data.table.flip(0)
        return calls

    def no_mask(data):
        pools = [pool.transpose(1, 2) for pool in (data.pool_k, data.pool_v)]
        query = data.query.unflatten(0, (len(data.lengths), -1)).transpose(1, 2)
        options = {"page_table": data.table, "lengths": data.lengths, "enable_gqa": True, "scale": beside_flashinfer.SCALE}
        return {"no mask": (lambda: beside_flashinfer.flex_attention(query, *pools, **options).transpose(1, 2).flatten(0, 1), None)}

    batch = batches.Batch((40, 37), (4, 4), page=4)
    for row in rows_of(batch, other_pages, no_mask):
        assert row["refused"].startswith("its error is") and "ms" not in row


def test_what_another_library_lacks_is_a_reason():
    def plans_nothing(_):
        def plan():
            raise ValueError("no such page size\nand more")

        return {"other": (None, plan)}

    rows = rows_of(batches.Batch((4,), (1,)), beside_flashinfer.flashinfer_calls, plans_nothing)
    assert rows == [{"implementation": "flashinfer", "refused": "No module named 'flashinfer'"}, {"implementation": "other", "refused": "no such page size"}]


def test_a_report_is_continued(tmp_path, monkeypatch):
    path = tmp_path / "report.json"
    for _ in range(2):
        monkeypatch.setattr(sys, "argv", ["", str(path), "--device", "cpu", "--part", "512", "--cases", "256 of 16 to 512;4096 of 32"])
        beside_flashinfer.main()
    report = json.loads(path.read_text())
    assert [row["case"] for row in report["results"]] == ["256 of 16 to 512", "4096 of 32"]
    assert report["versions"] == {"torch": torch.__version__} and report["part"] == 512
