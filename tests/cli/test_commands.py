"""Each subcommand on good problems: what it prints, in text and JSON, and its exit code."""

import json
import os
import pty
import re
import subprocess

import numpy as np
import pytest

from built_command import PROBLEMS, ROOT, find_command

SMALL = {"batch": 2, "heads_q": 4, "heads_kv": 2, "seq_q": 5, "seq_kv": 7, "dim_qk": 8, "dim_v": 6}


def write(folder, problem, name="problem.json"):
    path = folder / name
    path.write_text(json.dumps(problem), encoding="utf-8")
    return path


def test_there_are_enough_examples():
    assert len(PROBLEMS) >= 9


@pytest.mark.parametrize("path", PROBLEMS, ids=lambda path: path.stem)
def test_examples_pass_the_check(scoremod, path):
    done = scoremod("check", path, "--json")
    assert done.returncode == 0, done.stderr + done.stdout
    report = json.loads(done.stdout)
    names = [output["name"] for output in report["outputs"]]
    assert names[:5] == ["o", "lse", "dq", "dk", "dv"]
    for output in report["outputs"]:
        assert output["passed"] and output["l2"]["error"] <= output["l2"]["tolerance"], output
    assert any(output["l2"]["scale"] > 0 for output in report["outputs"])


@pytest.mark.parametrize("path", PROBLEMS, ids=lambda path: path.stem)
def test_examples_are_explained(scoremod, path):
    text = scoremod("explain", path)
    assert text.returncode == 0, text.stderr
    report = json.loads(scoremod("explain", path, "--json").stdout)
    assert report["mask"]["kind"] in text.stdout
    assert sum(backend["chosen"] for backend in report["backends"]) == 1
    assert "d_score = " in report["derivative"]
    assert 0 < report["work"]["pairs"] <= report["work"]["dense_pairs"]


def test_explain_shows_steps_on_request(scoremod, tmp_path):
    path = write(tmp_path, {**SMALL, "program": "value = select(q_idx >= kv_idx, tanh(score), -inf)"})
    short = json.loads(scoremod("explain", path, "--json").stdout)
    full = json.loads(scoremod("explain", path, "--json", "--steps").stdout)
    assert all("program" not in step for step in short["steps"])
    assert all(step["program"] for step in full["steps"])
    assert short["mask"]["kind"] == "band"
    name = short["steps"][0]["name"]
    left_out = json.loads(scoremod("explain", path, "--json", "--disable", name).stdout)
    assert name not in [step["name"] for step in left_out["steps"]]


def test_explained_problem_is_a_problem_file(scoremod, tmp_path):
    first = json.loads(scoremod("explain", PROBLEMS[0], "--json").stdout)
    again = scoremod("explain", write(tmp_path, first["problem"]), "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["problem"] == first["problem"]


def test_check_without_backward(scoremod, tmp_path):
    shared_keys = {"strides": {"batch": 0, "head": 8, "sequence": 16, "dim": 1}}
    path = write(tmp_path, {**SMALL, "k": shared_keys})
    assert scoremod("check", path).returncode == 2
    done = scoremod("check", path, "--forward-only", "--json")
    assert done.returncode == 0, done.stderr
    assert [output["name"] for output in json.loads(done.stdout)["outputs"]] == ["o", "lse"]


def test_standard_input_is_a_problem(scoremod):
    done = scoremod("run", "-", "--json", input=json.dumps(SMALL))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["backward"] is None
    assert [output["name"] for output in report["outputs"]] == ["o"]


def test_run_prints_each_call_and_the_median(scoremod, tmp_path):
    path = write(tmp_path, SMALL)
    report = json.loads(scoremod("run", path, "--json", "--repeat", "4", "--backward").stdout)
    for direction in ("forward", "backward"):
        assert len(report[direction]["seconds"]) == 4
        assert report[direction]["median_seconds"] == pytest.approx(np.median(report[direction]["seconds"]))
    assert "median of 4" in scoremod("run", path, "--repeat", "4").stdout


def test_seed_and_backend_are_obeyed(scoremod, tmp_path):
    path = write(tmp_path, SMALL)

    def output(*arguments):
        report = json.loads(scoremod("run", path, "--json", *arguments).stdout)
        return report["backend"], report["outputs"][0]["mean"]

    assert output("--seed", "1")[1] == output("--seed", "1")[1]
    assert output("--seed", "1")[1] != output("--seed", "2")[1]
    assert output("--backend", "reference")[0] == "reference"
    assert output("--backend", "reference")[1] == pytest.approx(output()[1], rel=1e-4)


def test_rows_without_keys_are_counted_as_not_finite(scoremod, tmp_path):
    problem = {**SMALL, "stats": True, "program": {"mask_mod": ["padding"]}, "inputs": {"lengths": {"values": [0, 0]}}}
    outputs = json.loads(scoremod("run", write(tmp_path, problem), "--json").stdout)["outputs"]
    assert (outputs[0]["minimum"], outputs[0]["maximum"]) == (0, 0)
    assert outputs[1]["finite"] == 0 and outputs[1]["mean"] is None


def test_zoo_lists_what_it_shows(scoremod):
    entries = json.loads(scoremod("zoo", "--json").stdout)
    listed = scoremod("zoo").stdout
    assert {"soft_cap", "alibi", "causal", "documents", "neighborhood_2d"} <= {entry["name"] for entry in entries}
    for entry in entries:
        assert entry["name"] in listed
        one = scoremod("zoo", entry["name"], "--json")
        assert one.returncode == 0, one.stderr
        shown = json.loads(one.stdout)
        assert shown["program"] and {key: shown[key] for key in entry} == entry
        assert shown["program"].strip().splitlines()[0].strip() in scoremod("zoo", entry["name"]).stdout


def test_zoo_takes_parameters(scoremod):
    assert "128" in json.loads(scoremod("zoo", "sliding_window", "window=128", "--json").stdout)["program"]


def test_help_and_version(scoremod):
    for arguments in (["--help"], ["run", "--help"]):
        done = scoremod(*arguments)
        assert (done.returncode, done.stderr) == (0, "") and "PROBLEM" in done.stdout
    assert scoremod("--version").stdout.startswith("scoremod ")


def seen_on_a_terminal(problem, *arguments, until):
    """The text that the command writes to a standard error that is a terminal, to its end or until `until` is seen."""
    ours, theirs = pty.openpty()
    with subprocess.Popen([find_command(), *arguments, "-"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=theirs) as process:
        os.close(theirs)
        process.stdin.write(json.dumps(problem).encode())
        process.stdin.close()
        written = b""
        while until not in written.decode():
            try:
                part = os.read(ours, 4096)
            except OSError:  # what Linux says when the other side has closed
                break
            written += part
        process.kill()
    os.close(ours)
    return written.decode()


COMMANDS = ["explain", "run", "check", "bench", "zoo", "compile", "device", "cache list", "cache verify", "cache prune", "cache clear"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_documented(scoremod, command):
    help_text = scoremod(*command.split(), "--help").stdout
    options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", help_text)) - {"--help"}
    page = (ROOT / "docs" / "reference" / "command.md").read_text(encoding="utf-8")
    assert f"scoremod {command.split()[0]}" in page
    missing = {option for option in options if not re.search(rf"{option}(?![\w-])", page)}
    assert not missing and (options or command == "device")


def test_progress_is_for_long_runs_on_terminals():
    problem = {"batch": 1, "heads_q": 1, "seq_q": 64, "dim_qk": 64}
    # A million calls take more than two seconds on any machine; the test waits for the bar, not for them.
    assert "%" in seen_on_a_terminal(problem, "run", "--repeat", "1000000", until="forward")
    assert seen_on_a_terminal(problem, "run", until="%") == ""


def test_columns_of_text_stand_apart(scoremod, tmp_path):
    """However long an operand's name is."""
    program = "operand temperature: f32 [h]; operand w: f32 []; value = score * temperature * w"
    path = write(tmp_path, {**SMALL, "backward": True, "program": program})
    lines = scoremod("run", path).stdout.splitlines()
    names = {"backend", "forward", "backward", "o", "lse", "dq", "dk", "dv", "d_temperature", "d_w"}
    assert {line.split()[0] for line in lines} == names
    columns = {re.match(r"\S+ +", line).end() for line in lines}
    assert len(columns) == 1
    lines = scoremod("check", path).stdout.splitlines()
    assert {line.split()[0] for line in lines[1:-1]} == names - {"backend", "forward", "backward"}


def test_run_says_that_one_call_is_a_first_call(scoremod, tmp_path):
    path = write(tmp_path, SMALL)
    assert " ms (first call), " in scoremod("run", path).stdout
    assert " ms (median of 3), " in scoremod("run", path, "--repeat", 3).stdout


def test_check_prints_errors_as_parts_of_what_they_may_be(scoremod, tmp_path):
    path = write(tmp_path, {**SMALL, "program": "value = tanh(score)"})
    report = json.loads(scoremod("check", path, "--json").stdout)
    head, *lines, verdict = scoremod("check", path).stdout.splitlines()
    assert head.split("  ")[0] == "on cpu" and "relative" in head and "% allowed" in head
    assert verdict.startswith("passed, seed")
    for line, output in zip(lines, report["outputs"], strict=True):
        name, *numbers, word = line.split()
        assert (name, word) == (output["name"], "ok")
        expected = [
            x for norm in ("l2", "max") for x in (output[norm]["error"] / output[norm]["scale"], 100 * output[norm]["error"] / output[norm]["tolerance"])
        ]
        for text, number in zip(numbers, expected, strict=True):
            assert float(text) == pytest.approx(number, rel=0.06)
