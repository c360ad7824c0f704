"""README's picture shows the numbers of the committed records, and its script draws both kinds of record."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results"


def front_page(*arguments):
    done = subprocess.run([sys.executable, ROOT / "bench" / "front_page.py", *map(str, arguments)], capture_output=True, text=True)
    return done.returncode, done.stderr


def test_the_picture_is_of_the_committed_records():
    assert front_page("--check") == (0, "")


def peers(folder, ms):
    rows = [
        {"case": "causal", "direction": "forward", "implementation": "scoremod", "ms": ms},
        {"case": "causal", "direction": "forward", "implementation": "flex_triton", "ms": 1.25},
        {"case": "relative_table_learned", "direction": "backward", "implementation": "scoremod", "ms": 2.0},
        {"case": "relative_table_learned", "direction": "backward", "implementation": "flex_triton", "refused": "no configuration"},
    ]
    shape = {"batch": 4, "heads": 16, "seq": 4096, "dim": 128, "dtype": "bfloat16"}
    (folder / "h200-peers.json").write_text(json.dumps({"machine": "a", "commit": "b", "versions": {"torch": "c"}, "shape": shape, "results": rows}))


@pytest.mark.parametrize("kind", ["peers", "torch"])
def test_another_number_is_noticed(kind, tmp_path):
    options = ("--results", tmp_path, "--picture", tmp_path / "speed.png")
    shutil.copy(RESULTS / "torch_h200.json", tmp_path)
    if kind == "peers":
        peers(tmp_path, 0.5)
    assert front_page("--check", *options)[0] == 1
    assert front_page(*options) == (0, "")
    assert front_page("--check", *options) == (0, "")
    if kind == "peers":
        peers(tmp_path, 0.51)
    else:
        record = json.loads((tmp_path / "torch_h200.json").read_text())
        record["cases"]["causal"]["scoremod"]["forward_ms"] *= 1.01
        (tmp_path / "torch_h200.json").write_text(json.dumps(record))
    code, message = front_page("--check", *options)
    assert code == 1 and "run .venv/bin/python bench/front_page.py" in message
