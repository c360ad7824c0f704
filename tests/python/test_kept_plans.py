"""scoremod.cache: limits, statistics, and the files in which plans are kept."""

import pytest

import scoremod

DAMAGED = "plan-0123456789abcdef.scoremod"


@pytest.fixture
def store(tmp_path):
    before = scoremod.cache.statistics()
    folder = tmp_path / "plans"
    folder.mkdir()
    scoremod.cache.set_directory(folder)
    yield folder
    scoremod.cache.set_directory(before["store"]["directory"] or None)
    limits = before["plans"]["limits"]
    scoremod.cache.set_limits(plans=limits["plans"], plan_bytes=limits["bytes"], store_bytes=before["store"]["limit_bytes"])


def test_limits_are_what_was_set(store):
    scoremod.cache.set_limits(plans=3, plan_bytes=2**40, store_bytes=2**41)
    scoremod.cache.set_limits(plans=4)
    statistics = scoremod.cache.statistics()
    assert statistics["plans"]["limits"] == {"plans": 4, "bytes": 2**40}
    assert statistics["store"]["limit_bytes"] == 2**41
    assert {"hits", "misses", "builds", "refusals", "evictions", "bytes"} <= statistics["plans"].keys()


def test_directory_is_what_was_set(store):
    assert scoremod.cache.directory() == str(store)
    scoremod.cache.set_directory(None)
    assert scoremod.cache.directory() is None and scoremod.cache.files() == []


def test_files_are_listed_verified_and_deleted(store):
    (store / "notes.txt").write_text("mine")
    for delete in (scoremod.cache.remove_damaged, scoremod.cache.clear_files, lambda: scoremod.cache.prune(0)):
        (store / DAMAGED).write_bytes(b"no plan")
        (file,) = scoremod.cache.files(verify=True)
        assert (file["name"], file["bytes"]) == (DAMAGED, 7) and "no file of scoremod" in file["damage"]
        assert delete() == {"files": 1, "bytes": 7}
        assert scoremod.cache.files() == []
    assert (store / "notes.txt").exists()
    scoremod.cache.clear()


@pytest.mark.parametrize("value", [-1, 2**64, 1.5, "1", True])
def test_sizes_are_checked(store, value):
    with pytest.raises(scoremod.InvalidArgumentError, match="from 0 to"):
        scoremod.cache.prune(value)
    with pytest.raises(scoremod.InvalidArgumentError, match="plans"):
        scoremod.cache.set_limits(plans=value)


def test_a_file_is_no_folder(store):
    (store / "file").write_text("text")
    scoremod.cache.set_directory(store / "file")
    with pytest.raises(scoremod.EnvironmentError, match="cannot read the folder"):
        scoremod.cache.files()
    for wrong in ("", "a\0b"):
        with pytest.raises(scoremod.InvalidArgumentError, match="name of a folder"):
            scoremod.cache.set_directory(wrong)
