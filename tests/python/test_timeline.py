"""The steps of making plans, as SCOREMOD_TIMELINE has them written and tools/device/first_use.py reads them."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMPILE = """
import time, scoremod
start = time.perf_counter()
scoremod.Attention({"batch": 1, "heads_q": 1, "seq_q": 8, "seq_kv": 8, "dim_qk": 8, "backward": True, "program": "value = score * 2.0"}, backend="cpu")
print(1e3 * start, 1e3 * (time.perf_counter() - start))
"""


def test_steps_are_within_the_call(tmp_path):
    spec = importlib.util.spec_from_file_location("first_use", ROOT / "tools/device/first_use.py")
    first_use = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(first_use)
    timeline = tmp_path / "timeline.jsonl"
    done = subprocess.run([sys.executable, "-c", COMPILE], env={**os.environ, "SCOREMOD_TIMELINE": str(timeline)}, capture_output=True, text=True, check=True)
    start_ms, call_ms = map(float, done.stdout.split())
    steps = first_use.steps_of(timeline, start_ms)
    assert steps[0]["step"] == "attention"
    assert {"compile the program", "choose"} <= {step["step"] for step in steps}
    assert {step["what"] for step in steps if step["step"] == "choose"} == {"forward", "backward"}
    # By less than a number of one decimal is rounded by.
    assert all(-0.06 <= step["begin_ms"] <= step["end_ms"] <= call_ms + 0.06 for step in steps)
    assert [step["begin_ms"] for step in steps] == sorted(step["begin_ms"] for step in steps)
