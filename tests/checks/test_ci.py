"""Continuous integration's script runs every step, says at its end what it ran, and fails where one failed."""

import datetime
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STEPS = [
    "seed",
    "setup",
    "ruff",
    "format",
    "pyright",
    "release",
    "torch-types",
    "public-types",
    "strict-types",
    "no-cudnn",
    "no-cuda",
    "docs",
    "clang",
    "tidy",
    "fuzz",
    "asan-torch",
    "tsan",
    "asan",
]


@pytest.fixture
def ci(tmp_path):
    """Runs a copy of it in a checkout whose programs only say how they were called; `failing` is a command of ./dev that fails."""
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    (tmp_path / ".ci" / "seed").write_text("4711\n")

    def run(failing="none", **environment):
        for program in ("dev", ".venv/bin/ruff", ".venv/bin/python"):
            path = tmp_path / program
            path.write_text(f'#!/bin/sh\necho "noise"\necho "said: {path.name} $*"\necho "$SCOREMOD_TEST_SEED" >>seeds\n[ "$*" != "{failing}" ]\n')
            path.chmod(0o755)
        environment = {name: value for name, value in os.environ.items() if name != "SCOREMOD_TEST_SEED"} | environment
        done = subprocess.run([tmp_path / ".ci" / "run"], capture_output=True, text=True, cwd=tmp_path, env=environment)
        lines = done.stdout.splitlines()
        return done.returncode, lines[lines.index("step           result    time  says") + 1 :]

    return run


def test_the_end_says_what_ran(ci):
    code, lines = ci()
    assert code == 0
    assert [line.split()[:2] for line in lines] == [[step, "passed"] for step in STEPS]
    assert all(re.search(r" \d+ s  said: ", line) for line in lines[1:])
    said = {line.split()[0]: line.split("said: ")[1] for line in lines[1:]}
    assert said["release"] == "dev test" and said["no-cuda"] == "dev test no-cuda" and said["docs"] == "dev docs"


def test_a_step_that_fails_ends_in_a_failure_after_all_others(ci):
    code, lines = ci("test no-cudnn")
    assert code == 1
    assert {line.split()[0]: line.split()[1] for line in lines} == {step: "FAILED" if step == "no-cudnn" else "passed" for step in STEPS}


@pytest.mark.parametrize(("limit", "least", "most"), [("5000", 720, 720), ("100", 40, 100)])
def test_steps_of_a_chosen_time_have_what_is_left(ci, limit, least, most):
    code, lines = ci(SCOREMOD_CI_SECONDS=limit)
    said = {line.split()[0]: line.split("said: ")[1] for line in lines[1:]}
    assert code == 0 and list(said) == STEPS[1:]
    assert said["tidy"] == "dev tidy --seconds 60"
    assert least <= int(re.fullmatch(r"dev sanitize asan (\d+)  property conformance", said["asan"])[1]) <= most


def test_steps_of_a_chosen_time_are_left_out_where_none_is_left(ci):
    code, lines = ci(SCOREMOD_CI_SECONDS="20")
    results = {line.split()[0]: line for line in lines}
    chosen = STEPS[STEPS.index("clang") :]
    assert code == 0 and list(results) == STEPS
    assert all(("left out" in results[step] and "within -10 s" in results[step]) == (step in chosen) for step in STEPS)


def test_random_tests_draw_from_the_seed_of_the_checkout_or_the_environment(ci, tmp_path):
    seeds = tmp_path / "seeds"
    ci()
    assert set(seeds.read_text().split()) == {"4711"}
    seeds.unlink()
    ci(SCOREMOD_TEST_SEED="12")
    assert set(seeds.read_text().split()) == {"12"}


@pytest.mark.parametrize(("days", "result"), [(2, "passed"), (4, "FAILED")])
def test_a_seed_that_stays_is_seen(ci, tmp_path, days, result):
    def git(*arguments, **dates):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], check=True, cwd=tmp_path, env=os.environ | dates)

    git("init", "-q")
    git("add", ".ci")
    for age, message in ((days, "the seed"), (0, "a later change")):
        when = (datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=age)).isoformat()
        git("commit", "-q", "--allow-empty", "-m", message, GIT_AUTHOR_DATE=when, GIT_COMMITTER_DATE=when)
    code, lines = ci()
    assert lines[0].split()[:2] == ["seed", result] and code == (result == "FAILED")
    assert f"{days} days older" in lines[0]


def test_every_command_is_one_of_dev():
    usage = (ROOT / "dev").read_text(encoding="utf-8")
    asked = re.findall(r"\./dev (\w+)", (ROOT / ".ci" / "run").read_text(encoding="utf-8"))
    assert len(asked) > 8 and all(f"\n    {name})" in usage for name in asked)
