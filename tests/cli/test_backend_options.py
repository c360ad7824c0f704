"""--backend, --backends and --memory: who may run a problem, said on the command line."""

import json

import pytest

PROBLEM = {"batch": 1, "heads_q": 2, "seq_q": 24, "seq_kv": 40, "dim_qk": 16, "dtype": "bf16", "program": "value = tanh(score)"}


@pytest.fixture
def problem(tmp_path):
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(PROBLEM), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "options, backend",
    [
        ((), "cpu"),
        (("--backends", "reference,cpu"), "reference"),
        (("--backends", "cpu,reference"), "cpu"),
        (("--backends=-cpu",), "reference"),
        (("--memory", "host"), "cpu"),
    ],
)
def test_what_is_asked_for_runs(scoremod, problem, options, backend):
    done = scoremod("check", problem, *options, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["backend"] == backend


def test_a_suite_reports_what_ran(scoremod):
    done = scoremod("check", "--suite", "--backends=-cpu", "--random", "1", "--filter", "random/", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["backend"] == "-cpu"
    assert {result["backend"] for result in report["results"]} == {"reference"}


def test_memory_of_a_gpu_is_never_the_hosts(scoremod, problem):
    done = scoremod("explain", problem, "--memory", "cuda", "--json")
    chosen = [backend["backend"] for backend in json.loads(done.stdout)["backends"] if backend.get("chosen")]
    assert not {"cpu", "reference"} & set(chosen)


@pytest.mark.parametrize(
    "options, message",
    [
        (("--memory", "gpu"), "--memory: expected host or cuda, found 'gpu'"),
        (("--backend", "cpu", "--backends", "cpu"), "--backend excludes --backends"),
        (("--backends", "abacus"), "abacus"),
        (("--new-sizes", "later"), "--new-sizes: expected wait or serve, found 'later'"),
    ],
)
def test_mistakes_are_named(scoremod, problem, options, message):
    done = scoremod("check", problem, *options)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.parametrize("backend", ["cudnn", "kernels"])
def test_a_backend_for_gpus_takes_no_memory_of_the_host(scoremod, problem, backend):
    """A build that was made without it says so, and how one with it is built."""
    known = {answer["backend"] for answer in json.loads(scoremod("explain", problem, "--json").stdout)["backends"]}
    done = scoremod("check", problem, "--memory", "host", "--backend", backend)
    if backend in known:
        assert (done.returncode, f"backend '{backend}' takes cuda memory, found host asked for" in done.stderr) == (2, True), done.stderr
    else:
        assert (done.returncode, f"this build of scoremod has no backend '{backend}'" in done.stderr) == (3, True), done.stderr
        assert "build it with CMake's SCOREMOD_CU" in done.stderr
        assert scoremod("check", problem, f"--backends=-{backend}").returncode == 0


def test_what_new_sizes_do_is_asked_of_the_environment_last(scoremod, problem, monkeypatch):
    monkeypatch.setenv("SCOREMOD_NEW_SIZES", "later")
    done = scoremod("check", problem)
    assert (done.returncode, "SCOREMOD_NEW_SIZES: expected wait or serve, found 'later'" in done.stderr) == (2, True)
    for wish in ("wait", "serve"):
        assert scoremod("check", problem, "--new-sizes", wish).returncode == 0
