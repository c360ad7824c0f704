"""docs/performance.md shows the record beside other libraries as it is committed."""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_table_is_the_records(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench" / "peers"))
    monkeypatch.delitem(sys.modules, "choices", raising=False)
    import choices

    report = json.loads((ROOT / "bench/results/h200-peers.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    lines = choices.table(report)
    assert len(lines) > 25
    assert "\n".join(lines) + "\n" in page, "write what bench/peers/choices.py --table prints into docs/performance.md"
