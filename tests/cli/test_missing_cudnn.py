"""A store with plans of cuDNN, read where cuDNN can't be loaded: an error that says so where it is named, and other backends otherwise."""

import json
import os

import pytest

from cudnn_plans import DEVICES, compile_or_skip

PROBLEM = {"batch": 1, "heads_q": 2, "seq_q": 640, "dim_qk": 64, "dtype": "bf16", "program": {"mask_mod": ["causal"]}}


@pytest.fixture(name="problem")
def problem_file(tmp_path):
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(PROBLEM), encoding="utf-8")
    return path


@pytest.fixture(name="without_cudnn")
def environment_without_cudnn(tmp_path):
    """The loader finds a file of this name first, and no library in it."""
    folder = tmp_path / "no_cudnn"
    folder.mkdir()
    (folder / "libcudnn.so.9").write_text("no library", encoding="utf-8")
    return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("LD_LIBRARY_PATH")]))}


@pytest.fixture(name="store")
def store_of_cudnn(scoremod, problem, tmp_path):
    store = tmp_path / "plans"
    done = compile_or_skip(scoremod, problem, "--device", DEVICES / "h200.json", "--backend", "cudnn", "-o", store, "--json")
    if "no pattern is known" in done.stdout:
        pytest.skip("no pattern table for the installed cuDNN")
    assert done.returncode == 0, done.stderr + done.stdout
    return store


def contents(store):
    return {path.name: path.read_bytes() for path in store.iterdir()}


def test_the_store_stays_and_others_run(scoremod, problem, store, without_cudnn):
    before = contents(store)
    assert len(before) == 2  # the plan, and its trial's
    for arguments in (["compile", problem, "--device", DEVICES / "h200.json", "-o", store], ["explain", problem, "--device", DEVICES / "h200.json"]):
        done = scoremod(*arguments, "--backend", "cudnn", env={**without_cudnn, "SCOREMOD_CACHE_DIR": str(store)})
        assert done.returncode == 4, done.stderr + done.stdout
        assert "environment: no cuDNN 9: " in done.stderr and "libcudnn.so.9: file too short" in done.stderr
    explained = scoremod("explain", problem, "--json", env={**without_cudnn, "SCOREMOD_CACHE_DIR": str(store)})
    assert explained.returncode == 0, explained.stderr
    backends = {each["backend"]: each for each in json.loads(explained.stdout)["backends"]}
    assert not backends["cudnn"]["supported"] and backends["cpu"]["chosen"]
    verified = scoremod("cache", "verify", "--dir", store, env=without_cudnn)
    assert verified.returncode == 0, verified.stdout
    assert contents(store) == before


def test_with_cudnn_again_the_plans_serve(scoremod, problem, store, without_cudnn):
    hidden = scoremod("compile", problem, "--device", DEVICES / "h200.json", "--backend", "cudnn", "-o", store, env=without_cudnn)
    assert hidden.returncode == 4
    listed = json.loads(scoremod("cache", "list", "--dir", store, "--json").stdout)["files"]
    again = scoremod("compile", problem, "--device", DEVICES / "h200.json", "--backend", "cudnn", "-o", store, "--json")
    assert again.returncode == 0, again.stderr
    assert sorted(row["label"] for row in json.loads(again.stdout)) == sorted(each["label"] for each in listed)
