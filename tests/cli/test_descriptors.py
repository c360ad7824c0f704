"""cuDNN's descriptors, counted while the command builds plans."""

import json
import subprocess

import pytest
from built_command import find_command
from cudnn_plans import DEVICES, skip_without_cudnn

MASKS = [[], ["causal"], ["padding"], [{"name": "causal_sliding_window", "window": 100}]]


@pytest.fixture(name="events", scope="module")
def events_of_descriptors(preload, tmp_path_factory):
    """(what, address) of each thing that happened to a descriptor, in order."""
    folder = tmp_path_factory.mktemp("descriptors")
    files = []
    for mask in MASKS:
        for length in 512, 1024:
            sizes = {"batch": 1, "heads_q": 1, "heads_kv": 1, "seq_q": length, "seq_kv": length, "dim_qk": 64, "dim_v": 64}
            files.append(folder / f"{len(files)}.json")
            text = json.dumps({**sizes, "dtype": "bf16", "backward": True, "program": {"mask_mod": mask}})
            files[-1].write_text(text, encoding="utf-8")
    choice = ["--device", DEVICES / "h200.json", "--backend", "cudnn", "-o", folder / "plans", "--json"]
    environment = {**preload("descriptor_log.c"), "SCOREMOD_TEST_DESCRIPTORS": str(folder / "log")}
    command = [find_command(), "compile", *files, *choice]
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False)
    skip_without_cudnn(done)
    assert done.returncode == 0, done.stderr + done.stdout
    assert sum(row["stored"] for row in json.loads(done.stdout)) >= 20
    return [line.split() for line in (folder / "log").read_text(encoding="utf-8").splitlines()]


def test_each_is_destroyed_once(events):
    alive = set()
    for what, address in events:
        if what == "created":
            assert address not in alive
            alive.add(address)
        elif what == "destroyed":
            alive.remove(address)
    assert not alive
    assert sum(what == "created" for what, _ in events) > 1000


def test_those_that_cudnn_did_not_fill_are_destroyed_at_once(events):
    unfilled = set()
    seen = 0
    for what, address in events:
        if what == "unfilled":
            unfilled.add(address)
            seen += 1
        elif what == "destroyed":
            unfilled.discard(address)
        elif what == "created":
            assert not unfilled
    assert not unfilled
    assert seen > 0
