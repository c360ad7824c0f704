"""scoremod cache: what it finds in a folder of plans, and what it deletes.

The files are written here, from the description of their format in src/plans/record_file.hpp, so that a change of the format
that nobody wanted is seen.
"""

import json
import os
import struct
import time

import pytest

FNV_OFFSET, FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3


def fnv1a(data):
    value = FNV_OFFSET
    for byte in data:
        value = (value ^ byte) * FNV_PRIME % 2**64
    return value


def counted(tag, data):
    return tag + struct.pack("<Q", len(data)) + data


def stored_file(kind="plan", key=b"a key", payload=b"a plan", label="forward bf16"):
    """The name and the bytes of a file of the store."""
    texts = (kind, "0.1.0", "cudnn 9.19.0", "sm_90 NVIDIA H200", label)
    header = b"".join(counted(b"t", text.encode()) for text in texts) + counted(b"y", key)
    data = b"SCOREMOD" + struct.pack("<IQQ", 1, len(header), len(payload)) + header
    data += struct.pack("<Q", fnv1a(data)) + payload
    return f"{kind}-{fnv1a(key):016x}.scoremod", data + struct.pack("<Q", fnv1a(data))


def write(folder, *, age=0, damage=None, **fields):
    """Writes a file that was last used `age` seconds ago, without its byte `damage` if that is given."""
    name, data = stored_file(**fields)
    if damage is not None:
        data = data[:damage] + bytes([data[damage] ^ 1]) + data[damage + 1 :]
    path = folder / name
    path.write_bytes(data)
    used = time.time() - age
    os.utime(path, (used, used))
    return path


@pytest.fixture
def store(tmp_path):
    folder = tmp_path / "plans"
    folder.mkdir()
    return folder


@pytest.fixture
def cache(scoremod, store):
    """Runs `scoremod cache` on the folder: cache("list") -> (exit code, what its JSON says)."""

    def run(*arguments):
        done = scoremod("cache", *arguments, "--json", "--dir", store)
        assert done.stderr == ""
        return done.returncode, json.loads(done.stdout)

    return run


def test_list_shows_what_is_kept(cache, scoremod, store):
    old = write(store, key=b"1", label="the old one", age=1000)
    new = write(store, key=b"2", label="the new one", kind="verification")
    code, report = cache("list")
    assert code == 0 and report["directory"] == str(store) and report["limit_bytes"] == 2**30
    assert [file["name"] for file in report["files"]] == [new.name, old.name]
    file = report["files"][1]
    assert file["last_used"] == pytest.approx(time.time() - 1000, abs=60)
    assert {key: file[key] for key in ("bytes", "damage", "kind", "library", "engine", "architecture", "label")} == {
        "bytes": old.stat().st_size,
        "damage": None,
        "kind": "plan",
        "library": "0.1.0",
        "engine": "cudnn 9.19.0",
        "architecture": "sm_90 NVIDIA H200",
        "label": "the old one",
    }
    text = scoremod("cache", "list", "--dir", store)
    assert text.returncode == 0 and "the old one; sm_90 NVIDIA H200, cudnn 9.19.0" in text.stdout and "2 files" in text.stdout


def test_verify_finds_damage_that_list_does_not_look_for(cache, scoremod, store):
    write(store, key=b"1")
    damaged = write(store, key=b"2", damage=-9)
    assert cache("list")[0] == 0
    code, report = cache("verify")
    assert code == 1
    assert [file["name"] for file in report["files"] if file["damage"]] == [damaged.name]
    assert "DAMAGED: has contents" in scoremod("cache", "verify", "--dir", store).stdout
    assert cache("verify", "--remove") == (0, {"directory": str(store), "files": 1, "bytes": len(stored_file()[1]) - 4})
    assert not damaged.exists() and cache("verify")[0] == 0


def test_prune_deletes_the_least_recently_used(cache, store):
    paths = [write(store, key=bytes([number]), age=100 - number) for number in range(4)]
    size = paths[0].stat().st_size
    code, report = cache("prune", "--max-bytes", 2 * size)
    assert (code, report["files"], report["bytes"]) == (0, 2, 2 * size)
    assert [path.exists() for path in paths] == [False, False, True, True]
    assert cache("prune")[1]["files"] == 0


def test_clear_deletes_the_stores_files_only(cache, store):
    write(store)
    (store / "notes.txt").write_text("mine")
    code, report = cache("clear")
    assert (code, report["files"]) == (0, 1)
    assert [path.name for path in store.iterdir()] == ["notes.txt"]


def test_the_environment_names_the_folder(scoremod, store):
    write(store)

    def listed(**variables):
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("SCOREMOD_CACHE", "XDG_"))}
        return scoremod("cache", "list", "--json", env={**clean, **variables})

    assert len(json.loads(listed(SCOREMOD_CACHE_DIR=str(store)).stdout)["files"]) == 1
    (store.parent / "scoremod").symlink_to(store)
    assert len(json.loads(listed(XDG_CACHE_HOME=str(store.parent)).stdout)["files"]) == 1
    limited = json.loads(listed(SCOREMOD_CACHE_DIR=str(store), SCOREMOD_CACHE_BYTES="1000").stdout)
    assert limited["limit_bytes"] == 1000
    off = listed(SCOREMOD_CACHE_DIR=str(store), SCOREMOD_CACHE="off")
    assert off.returncode == 2 and "--dir" in off.stderr


def test_a_folder_that_is_not_there_is_empty(scoremod, tmp_path):
    for command in (["list"], ["verify"], ["prune"], ["clear"]):
        done = scoremod("cache", *command, "--json", "--dir", tmp_path / "nothing")
        assert done.returncode == 0 and json.loads(done.stdout)["files"] in ([], 0)
    assert not (tmp_path / "nothing").exists()


def test_an_empty_folder_name_is_no_folder(scoremod, store):
    file = write(store)
    for command in ("list", "clear"):
        done = scoremod("cache", command, "--dir", "", env={**os.environ, "SCOREMOD_CACHE_DIR": str(store)})
        assert done.returncode == 2 and "--dir: expected a folder, found an empty name" in done.stderr
    assert file.exists()


def test_mistakes(scoremod, store):
    file = write(store)
    assert scoremod("cache").returncode == 2
    assert scoremod("cache", "burn").returncode == 2
    assert scoremod("cache", "prune", "--max-bytes", "-1", "--dir", store).returncode == 2
    assert scoremod("cache", "prune", "--max-bytes", "lots", "--dir", store).returncode == 2
    done = scoremod("cache", "list", "--dir", file)
    assert done.returncode == 4 and "cannot read the folder" in done.stderr
    assert file.exists()
