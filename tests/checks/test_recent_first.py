"""Checks with little time begin with the sources that git's last commits changed."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "checks"))
from recent_first import changed, recent_first  # noqa: E402

NAMES = [f"{letter}.cpp" for letter in "abcdefghijklmnop"]


def git(folder, *words):
    # The settings of whoever runs the tests are left out.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | {"GIT_CONFIG_GLOBAL": "/dev/null"}
    user = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", *user, *words], cwd=folder, check=True, capture_output=True, env=environment)


def commit(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        with (folder / name).open("a") as file:
            file.write("// changed\n")
    git(folder, "add", ".")
    git(folder, "commit", "-m", "change")


@pytest.fixture
def clone(tmp_path):
    """A clone with a first commit of all files, and three that change some."""
    folder = tmp_path / "clone"
    folder.mkdir()
    git(folder, "init")
    commit(folder, *NAMES)
    commit(folder, "d.cpp")
    commit(folder, "inner/new one.cpp", "c.hpp")
    commit(folder, "b.cpp")
    return folder


def order(folder, seed=None, commits=50):
    sources = [folder / name for name in (*NAMES, "inner/new one.cpp")]
    ordered, count = recent_first(sources, folder, random.SystemRandom().randrange(2**32) if seed is None else seed, commits)
    assert sorted(ordered) == sorted(sources)
    return [str(path.relative_to(folder)) for path in ordered], count


def test_the_newest_changes_come_first(clone):
    """c.cpp counts because c.hpp changed. What one commit changed has the order in which git names it."""
    found, count = order(clone)
    assert found[:4] == ["b.cpp", "c.cpp", "inner/new one.cpp", "d.cpp"] and count == 4


def test_changes_that_are_not_committed_come_before_them(clone):
    (clone / "k.cpp").write_text("// not committed\n")
    found, count = order(clone)
    assert found[:2] == ["k.cpp", "b.cpp"] and count == 5


def test_commits_further_back_do_not_count(clone):
    found, count = order(clone, commits=1)
    assert found[0] == "b.cpp" and count == 1


def test_the_others_follow_at_random(clone):
    first, second = (order(clone, seed)[0] for seed in (1, 2))
    assert first == order(clone, 1)[0] and first[:4] == second[:4] and first[4:] != second[4:]


def test_a_clone_without_history_is_checked_at_random(clone, tmp_path):
    git(tmp_path, "clone", "--depth", "1", f"file://{clone}", "shallow")
    for folder in (tmp_path / "shallow", tmp_path):
        (tmp_path / "inner").mkdir(exist_ok=True)
        assert changed(folder) == []
        first, second = (order(folder, seed) for seed in (1, 2))
        assert first[1] == second[1] == 0 and first[0] != second[0]


def test_without_git_the_order_is_random(clone, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert order(clone, 1)[1] == 0 and order(clone, 1)[0] != order(clone, 2)[0]
