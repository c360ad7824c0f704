"""scoremod bench: what it measures on the CPU, what it writes, and what it says of bad input; and the plot of that."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest

from built_command import ROOT, find_command

SMALL = {"batch": 1, "heads_q": 2, "seq_q": 96, "dim_qk": 16}
CASES = [
    {"name": "full", "problem": SMALL},
    {"name": "documents", "problem": {**SMALL, "program": {"mask_mod": ["documents", "causal"]}}, "same_inputs": {"key_documents": "query_documents"}},
    {"name": "slopes", "problem": {**SMALL, "program": {"score_mod": ["alibi"]}}, "operand_gradients": False},
]
FIELDS = {
    "case",
    "direction",
    "batch",
    "heads",
    "sequence",
    "head_dim",
    "ms",
    "tflops",
    "reference_ms",
    "ratio",
    "build_ms",
    "load_ms",
    "trial_ms",
    "static_us",
    "host_us",
    "reference_host_us",
    "workspace_bytes",
}


def write(folder, value, name="cases.json"):
    path = folder / name
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


def test_every_case_is_measured_in_both_directions(scoremod, tmp_path):
    done = scoremod("bench", write(tmp_path, CASES), "--repetitions", 3, "--out", "out.json")
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert {"machine", "versions", "commit", "results"} <= report.keys()
    rows = report["results"]
    measured = [(row["case"], row["direction"]) for row in rows]
    assert measured == [(case["name"], direction) for case in CASES for direction in ("forward", "backward")]
    for row in rows:
        assert FIELDS <= row.keys()
        assert row["ms"] > 0 and row["tflops"] > 0 and row["backend"] == "cpu" and row["error"] is None
        # These need a device, or a program that measures another implementation beside.
        assert all(row[key] is None for key in ("reference_ms", "ratio", "build_ms", "load_ms", "trial_ms", "static_us", "host_us"))
        assert f"{row['case']} " in done.stdout and f"{row['ms']:.3f}" in done.stdout
    # So the table has no columns of them.
    assert done.stdout.splitlines()[0].split("  ")[0] == "case" and not re.search("reference|ratio|host|build|load", done.stdout)
    assert " - " not in done.stdout
    pairs = 96 * 96 * 2
    assert rows[0]["tflops"] == pytest.approx(4 * pairs * 16 / rows[0]["ms"] / 1e9)
    assert rows[1]["tflops"] == pytest.approx(10 * pairs * 16 / rows[1]["ms"] / 1e9)


def test_a_problem_file_is_a_case(scoremod, tmp_path):
    done = scoremod("bench", write(tmp_path, {**SMALL, "backward": True}, "mine.json"), "--forward-only")
    assert done.returncode == 0, done.stderr
    assert [line.split()[:2] for line in done.stdout.splitlines()[1:]] == [["mine", "forward"]]


def test_a_case_may_be_forward_only(scoremod, tmp_path):
    cases = [{"name": "few", "problem": {**SMALL, "seq_q": 4}, "forward_only": True}, {"name": "both", "problem": SMALL, "forward_only": False}]
    done = scoremod("bench", write(tmp_path, cases), "--repetitions", 1)
    assert done.returncode == 0, done.stderr
    assert [line.split()[:2] for line in done.stdout.splitlines()[1:]] == [["few", "forward"], ["both", "forward"], ["both", "backward"]]


def test_only_some_cases(scoremod, tmp_path):
    done = scoremod("bench", write(tmp_path, CASES), "--only", "slopes", "--repetitions", 1)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == ["slopes", "slopes"]


def test_cases_for_which_there_is_no_time_are_named(scoremod, tmp_path):
    done = scoremod("bench", write(tmp_path, CASES[:1]), "--seconds", "0.000001", "--out", "out.json")
    assert done.returncode == 0, done.stderr
    assert "full backward: not run, the time is over" in done.stdout
    report = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert report["results"] == [] and report["not_run"] == ["full forward", "full backward"]


def test_a_case_that_no_backend_runs_leaves_the_others(scoremod, tmp_path):
    done = scoremod("bench", write(tmp_path, CASES), "--backend", "cudnn", "--out", "out.json")
    if done.returncode == 0:
        pytest.skip("there is a device")
    assert done.returncode == 3, done.stderr
    rows = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["results"]
    assert len(rows) == 6
    for row in rows:
        assert row["ms"] is None and "cudnn" in row["error"]


@pytest.mark.parametrize(
    "cases, said",
    [
        ("[", "JSON"),
        ("3", "list of cases"),
        ([{"name": "x"}], '"name" and "problem"'),
        ([{"name": 1, "problem": SMALL}], "name"),
        ([{"name": "x", "problem": {**SMALL, "batch": 0}}], "batch"),
        ([{"name": "x", "problem": SMALL, "refernce": 1}], "refernce"),
        ([{"name": "x", "problem": SMALL, "operand_gradients": 1}], "operand_gradients"),
        ([{"name": "x", "problem": SMALL, "forward_only": "no"}], "forward_only"),
        ([{"name": "x", "problem": SMALL, "same_inputs": {"a": "b"}}], "same_inputs"),
        ([{"name": "x", "problem": SMALL}, {"name": "x", "problem": SMALL}], "two cases"),
        ([], "at least one case"),
    ],
)
def test_mistakes_in_files(scoremod, tmp_path, cases, said):
    done = scoremod("bench", write(tmp_path, cases))
    assert done.returncode == 2, done.stdout + done.stderr
    assert said in done.stderr


@pytest.mark.parametrize(
    "before, depth, after",
    [
        ("", 1_000_000, ""),
        ('[{"name": ', 1_000_000, ', "problem": {}}]'),
        ('[{"name": "x", "problem": {"program": ', 40, "}}]"),
    ],
    ids=["alone", "name", "program"],
)
def test_json_that_is_nested_too_deep(scoremod, tmp_path, before, depth, after):
    done = scoremod("bench", write(tmp_path, before + "[" * depth + "]" * depth + after))
    assert done.returncode == 2, done.returncode
    assert "nested at most 34 deep" in done.stderr and len(done.stderr) < 1000


def test_inputs_are_those_that_run_takes(scoremod, tmp_path):
    """Files, and values of any operand: the loader is that of `run`."""
    problem = {
        "batch": 1,
        "heads_q": 2,
        "seq_q": 3,
        "dim_qk": 8,
        "program": ["operand x: f32 [h]", "operand on: bool [b]", "value = select(on, score * x, score)"],
        "operands": [{"name": "x", "dtype": "f16", "strides": [2]}],
        "inputs": {"q": {"npy": "q.npy"}, "x": {"values": [0.5, 2]}, "on": {"values": [True]}},
    }
    cases = write(tmp_path, [{"name": "x", "problem": problem}])
    np.save(tmp_path / "q.npy", np.ones((1, 3, 2, 8), np.float32))
    done = scoremod("bench", cases, "--repetitions", 3)
    assert done.returncode == 0, done.stdout + done.stderr
    np.save(tmp_path / "q.npy", np.ones((1, 4, 2, 8), np.float32))
    done = scoremod("bench", cases, "--repetitions", 3)
    assert done.returncode == 2 and "q.npy" in done.stdout + done.stderr


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("missing.json",), "missing.json"),
        ((), "CASES"),
        ((".",), "Is a directory"),
        (("/dev/zero",), "expected JSON"),
        (("cases.json", "--repetitions", "0"), "repetitions"),
        (("cases.json", "--seconds", "0"), "--seconds"),
        (("cases.json", "--only", "nothing"), "expected names of cases (documents, full, slopes), found 'nothing'"),
        (("cases.json", "--backend", "gpu"), "gpu"),
    ],
)
def test_mistakes_in_the_command_line(scoremod, tmp_path, arguments, said):
    write(tmp_path, CASES)
    done = scoremod("bench", *arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert said in done.stderr + done.stdout


def test_a_report_that_cannot_be_written_is_an_error(scoremod, tmp_path):
    done = scoremod("bench", write(tmp_path, CASES[:1]), "--repetitions", 1, "--out", "no/such/folder.json")
    assert done.returncode == 4 and "folder.json" in done.stderr
    assert done.stdout == "", "nothing is measured that can't be written"


def test_earlier_results_stay_where_new_ones_cannot_be_written(tmp_path):
    (tmp_path / "out.json").write_text("earlier", encoding="utf-8")
    line = f'ulimit -f 1; "{find_command()}" bench "{write(tmp_path, CASES[:1])}" --repetitions 1 --out out.json'
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 4 and "out.json: cannot be written: File too large" in done.stderr, done
    assert (tmp_path / "out.json").read_text(encoding="utf-8") == "earlier"


def test_json_takes_the_place_of_the_table(scoremod, tmp_path):
    done = scoremod("bench", write(tmp_path, CASES[:1]), "--repetitions", 1, "--json", "--out", "out.json")
    assert done.returncode == 0, done.stderr
    assert done.stdout == (tmp_path / "out.json").read_text(encoding="utf-8")
    assert [row["case"] for row in json.loads(done.stdout)["results"]] == ["full", "full"]


def test_results_are_drawn(tmp_path):
    row = {"case": "causal", "direction": "forward", "ms": 0.5, "reference_ms": 0.48, "ratio": 1.04, "host_us": 7.0, "reference_host_us": 6.5}
    rows = [row, {**row, "direction": "backward", "reference_ms": None, "ratio": None, "reference_host_us": None}, {**row, "case": "refused", "ms": None}]
    report = {"machine": {"processor": "p", "cores": 2, "device": "GPU"}, "versions": {"cudnn": "9"}, "commit": "abc", "results": rows}
    picture = tmp_path / "picture.png"
    command = [sys.executable, ROOT / "bench" / "plot.py", write(tmp_path, report), picture]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if "No module named 'matplotlib'" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 10000
