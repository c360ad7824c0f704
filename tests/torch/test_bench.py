"""The benchmark and the example that changes one import run, and the record of integrations, here on the CPU with small shapes, and write what they found."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SMALL = "--batch 1 --heads 2 --seq 64 --dim 16 --dtype float32 --device cpu".split()


def run(script, *arguments):
    done = subprocess.run(
        [sys.executable, ROOT / script, *map(str, arguments)], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT / "python")}
    )
    return done.returncode, done.stdout, done.stderr


def test_the_benchmark_measures_each_implementation(tmp_path):
    pytest.importorskip("transformers")
    output = tmp_path / "report.json"
    code, _, errors = run("bench/torch/flex_attention.py", output, *SMALL, "--cases", "causal,alibi_learned,t5_block")
    assert code == 0, errors
    report = json.loads(output.read_text())
    assert report["cases"]["causal"]["scoremod"].keys() == report["cases"]["causal"]["sdpa"].keys() == {"forward_ms", "with_gradients_ms"}
    assert report["cases"]["alibi_learned"].keys() == {"scoremod"} and "not_run" not in report
    step = report["training_steps"]["t5_block"]
    assert step["scoremod"]["loss"] == pytest.approx(step["eager"]["loss"], rel=1e-4) and step["scoremod"]["step_ms"] > 0
    assert "refused" in step["flex_attention"]  # which has no backward on a CPU


def test_the_benchmark_says_what_it_had_no_time_for(tmp_path):
    code, out, errors = run("bench/torch/flex_attention.py", tmp_path / "report.json", *SMALL, "--cases", "plain,causal", "--seconds", 0)
    assert code == 0 and "no time is left for causal plain" in out, errors


def test_host_times_are_of_each_kind_of_call(tmp_path):
    report = tmp_path / "report.json"
    code, _, errors = run("bench/torch/host_times.py", report, "--device", "cpu", "--repeats", 2, "--parts", "known_sizes,new_sizes")
    assert code == 0, errors
    times = json.loads(report.read_text())
    kinds = {"closure", "fresh closure", "attribute", "ParameterDict", "ParameterList", "mask by name", "lengths", "sink", "ragged", "pages"}
    assert kinds | {"sdpa", "plain", "capped"} == times["known_sizes"].keys()
    assert kinds - {"fresh closure", "attribute", "ParameterDict", "ParameterList"} <= times["new_sizes"].keys()
    assert all(each["compiles"] == 0 for each in times["new_sizes"].values()), times


def test_the_script_of_one_import_trains(tmp_path):
    code, _, errors = run("tools/device/one_import.py", tmp_path / "report.json", "--steps", 3)
    assert code == 0, errors
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["checks"] == {"trains": True} and "does not support backward on CPU" in report["flex_attention"]["error"]


def test_one_import_changes_that_line_alone():
    path = ROOT / "tools" / "device" / "one_import.py"
    spec = importlib.util.spec_from_file_location("one_import", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    ours, theirs = (text.splitlines() for text in module.variants(module.SCRIPT.read_text()).values())
    assert [b for a, b in zip(ours, theirs, strict=True) if a != b] == ["from torch.nn.attention.flex_attention import flex_attention"]


def test_the_record_of_integrations_has_each_case(tmp_path):
    code, _, errors = run("tools/device/integrations.py", tmp_path / "record.json", "--device", "cpu", "--parts", "serving_guide,vllm_times", "--seed", 3)
    assert code == 0, errors
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["seed"] == 3 and record["counts"] == {"ok": 1, "error": 0, "not run": 3}
    assert all(each["reason"] == "a time needs a GPU" for each in record["cases"] if each["result"] == "not run")
    assert 0 < record["cases"][0]["error"] < 1e-5


def test_the_record_of_integrations_has_what_is_wrong(tmp_path):
    """A process that ends costs its own case, and a wrong result is an error."""
    folder = tmp_path / "integration_cases"
    shutil.copytree(ROOT / "tools" / "device" / "integration_cases", folder)
    (folder / "serving_guide.py").write_text(
        "import os, torch\nfrom integration_cases.measured import held\nx = torch.ones(3)\n"
        "CASES = {'ends': lambda draw: os.abort(), 'wrong': lambda draw: held([x * 1.1], [x], [x.double()], 'o'), 'right': lambda draw: {'calls': 1}}"
    )
    (tmp_path / "integrations.py").write_text((ROOT / "tools" / "device" / "integrations.py").read_text().replace("parents[2]", f"parents[0] / {str(ROOT)!r}"))
    code, _, errors = run(tmp_path / "integrations.py", tmp_path / "record.json", "--device", "cpu", "--parts", "serving_guide")
    cases = json.loads((tmp_path / "record.json").read_text())["cases"]
    assert code == 1 and [each["result"] for each in cases] == ["error", "error", "ok"], errors
    assert "the process ended with -6" in cases[0]["reason"] and "errors 0.1 and 0.1 from float64" in cases[1]["reason"]
