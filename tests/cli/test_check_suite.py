"""check --suite: its report and schema, its seed, its exit codes, and that it sees what is wrong."""

import json
import os
import statistics
import subprocess
import sys

import jsonschema
import pytest

from built_command import ROOT, find_command

SCHEMA = json.loads((ROOT / "docs" / "reference" / "check_suite.schema.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
FEW = ("check", "--suite", "--backend", "cpu", "--filter", "zoo/alibi/shard")


def report_of(done):
    report = json.loads(done.stdout)
    VALIDATOR.validate(report)
    return report


def test_schema_is_a_schema():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("path", sorted((ROOT / "bench" / "results").glob("*_check.json")), ids=lambda path: path.stem)
def test_committed_reports_fit_the_schema_and_hold_nothing_wrong(path):
    report = json.loads(path.read_text(encoding="utf-8"))
    VALIDATOR.validate(report)
    assert report["machine"] and report["commit"]
    assert report["summary"]["wrong"] == report["summary"]["error"] == 0


# Random problems, and of the zoo the shapes that are small.
@pytest.mark.parametrize("text, count", [("random/", 20), ("/one_query/", 100), ("/shard/", 100)])
def test_the_cpu_is_right(scoremod, text, count):
    done = scoremod("check", "--suite", "--backend", "cpu", "--random", "20", "--filter", text, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = report_of(done)
    assert report["backend"] == "cpu"
    assert report["summary"]["right"] == len(report["results"]) >= count
    for result in report["results"]:
        assert result["error"] <= result["tolerance"]
        names = list(result["outputs"])
        assert names[:2] == ["o", "lse"] if result["direction"] == "forward" else names[:3] == ["dq", "dk", "dv"]
    outputs = [output for result in report["results"] for output in result["outputs"].values()]
    ratios = [output["ratio_to_plain_attention"] for output in outputs if output["ratio_to_plain_attention"] is not None]
    summary = report["summary"]["plain_attention"]
    # How many there are is up to the seed: what is zero everywhere, as behind a mask that keeps nothing, has no ratio.
    assert 0 < len(ratios) == summary["outputs"]
    assert statistics.median_low(ratios) <= summary["median_ratio"] <= statistics.median_high(ratios)
    # The median over the outputs of 20 random problems exceeds 2 once in 100,000 runs.
    assert 0.1 < summary["median_ratio"] < 10


def test_text_says_what_the_report_says(scoremod, tmp_path):
    done = scoremod(*FEW, "--out", "report.json", "--machine", "an abacus", "--commit", "c0ffee", "--seed", "5")
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    VALIDATOR.validate(report)
    assert (report["machine"], report["commit"], report["seed"]) == ("an abacus", "c0ffee", 5)
    assert done.stdout.rstrip().endswith("seed 5: 4 right, 0 wrong, 0 refused, 0 error")
    worst = max(report["results"], key=lambda result: result["error"] / result["tolerance"])
    assert done.stdout.splitlines()[1].split()[1:4] == [worst["problem"], worst["direction"], worst["output"]]
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_a_run_draws_a_new_seed_which_repeats_it(scoremod):
    def report(*options):
        return report_of(scoremod("check", "--suite", "--backend", "cpu", "--random", "3", "--filter", "random/", *options, "--json"))

    first, second = report(), report()
    assert first["seed"] != second["seed"]
    programs = [result["program"] for result in first["results"]]
    assert programs != [result["program"] for result in second["results"]]
    assert programs == [result["program"] for result in report("--seed", str(first["seed"]))["results"]]


def test_parts_without_a_seed_are_refused(scoremod):
    done = scoremod(*FEW, "--parts", "2", "--part", "0")
    assert done.returncode == 2 and "expected a seed for a suite in 2 parts" in done.stderr


def test_the_seed_decides_and_the_number_of_threads_does_not(scoremod):
    def results(*arguments):
        done = scoremod("check", "--suite", "--backend", "cpu", "--random", "4", "--filter", "random/", "--json", *arguments)
        return report_of(done)["results"]

    assert results("--seed", "3", "--threads", "1") == results("--seed", "3", "--threads", "4")
    assert results("--seed", "3")[2:] != results("--seed", "4")[2:]
    # Random problem 1 of seed 3 has the seed of random problem 0 of seed 4.
    assert results("--seed", "3")[2]["program"] == results("--seed", "4")[0]["program"]


@pytest.mark.parametrize("backend, code", [("cpu", 0), ("cudnn", 1)])
def test_parts_make_the_report_of_the_whole(scoremod, tmp_path, backend, code):
    suite = ("check", "--suite", "--backend", backend, "--random", "4", "--seed", "0", "--filter", "/shard/" if backend == "cpu" else "random/")
    whole = report_of(scoremod(*suite, "--json"))
    if backend == "cudnn" and whole["summary"]["refused"] != len(whole["results"]):
        pytest.skip("there is a device")
    for part in range(3):
        scoremod(*suite, "--parts", 3, "--part", part, "--out", f"{part}.json")
    command = [sys.executable, ROOT / "tools" / "device" / "merge.py", "checks", "merged.json"]
    done = subprocess.run([*command, "0.json", "1.json", "2.json"], cwd=tmp_path, timeout=60, check=False)
    assert done.returncode == code
    merged = json.loads((tmp_path / "merged.json").read_text(encoding="utf-8"))
    VALIDATOR.validate(merged)
    by_problem = lambda report: sorted(report["results"], key=lambda result: (result["problem"], result["direction"]))  # noqa: E731
    assert by_problem(merged) == by_problem(whole)
    for report in (merged, whole):
        del report["results"], report["summary"]["seconds"]
    ratio = whole["summary"]["plain_attention"].pop("median_ratio")
    assert merged["summary"]["plain_attention"].pop("median_ratio") == pytest.approx(ratio, rel=1e-3)
    # Reasons as frequent as one another stand in the order in which the parts met them.
    by_reason = lambda report: sorted(report["summary"].pop("refused_by_reason"), key=lambda entry: (-entry["count"], entry["reason"]))  # noqa: E731
    assert by_reason(merged) == by_reason(whole)
    assert merged == whole
    subprocess.run([*command, "0.json", "2.json", "--parts", "3"], cwd=tmp_path, timeout=60, check=False)
    some = json.loads((tmp_path / "merged.json").read_text(encoding="utf-8"))
    VALIDATOR.validate(some)
    assert some["parts"] == "2 of 3"


def test_dtypes_are_those_asked_for(scoremod):
    done = scoremod(*FEW, "--dtype", "f32", "--dtype", "bf16", "--json")
    problems = {result["problem"] for result in report_of(done)["results"]}
    assert problems == {"zoo/alibi/shard/f32", "zoo/alibi/shard/bf16"}


@pytest.fixture(scope="module")
def planted(faulty_library):
    def run(fault, *arguments):
        environment = {**os.environ, "LD_PRELOAD": str(faulty_library), "SCOREMOD_TEST_FAULT": fault}
        return subprocess.run([find_command(), *FEW, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False)

    return run


@pytest.mark.parametrize(
    "fault, code, verdict, words",
    [
        ("none", 0, "right", "4 right, 0 wrong, 0 refused, 0 error"),
        ("over", 1, "wrong", "    o: the error is 3, it may be 2.5"),
        ("memory_written", 1, "wrong", "    memory: q was written"),
        ("unsupported", 3, "refused", "4     no backend: planted reason (zoo/alibi/shard/f16)"),
        ("environment", 1, "error", "    environment: planted"),
        ("memory", 1, "error", "    std::bad_alloc"),
        ("surprise", 1, "error", "    planted"),
    ],
)
def test_each_fault_has_its_verdict_and_exit_code(planted, fault, code, verdict, words):
    done = planted(fault)
    assert done.returncode == code, done
    assert words in done.stdout and done.stderr == ""
    verdicts = {result["verdict"] for result in report_of(planted(fault, "--json"))["results"]}
    # A fault of the forward leaves the backward as it is.
    assert verdicts == ({verdict, "right"} if verdict == "wrong" else {verdict})


@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "--suite", "problem.json"],
        ["check", "--suite", "--forward-only"],
        ["check", "--random", "3", "problem.json"],
        ["check", "--suite", "--random", "-1"],
        ["check", "--suite", "--filter", "no such problem"],
        ["check", "--suite", "--dtype", "i32"],
        ["check", "--suite", "--dtype", "float"],
        ["check", "--suite", "--backend", "abacus"],
        ["check"],
    ],
    ids=" ".join,
)
def test_bad_command_lines(scoremod, arguments):
    done = scoremod(*arguments)
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    assert done.stdout == "" and done.stderr.startswith("scoremod: ")


def test_a_report_that_cannot_be_written_is_said_before_time_is_spent(scoremod):
    done = scoremod("check", "--suite", "--random", "1000", "--out", "none/report.json")
    assert done.returncode == 4 and "none/report.json" in done.stderr
