"""tools/device/random_problems.py with a command that only writes a report."""

import importlib.util
import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "device" / "random_problems.py"


@pytest.fixture
def script(monkeypatch):
    spec = importlib.util.spec_from_file_location("random_problems", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "count_gpus", lambda: 1)
    return module


@pytest.fixture
def check_suite(tmp_path, script, monkeypatch):
    """Stands for check_suite.sh: problem 1 of seed 7 is wrong, every other one right."""
    made = tmp_path / "check_suite.py"
    made.write_text(
        "import json, sys\n"
        "seed = int(sys.argv[sys.argv.index('--seed') + 1])\n"
        "verdicts = ['right', 'wrong' if seed == 7 else 'right']\n"
        "results = [{'problem': f'random/{i}', 'direction': 'backward', 'verdict': v, 'program': 'value = score'} for i, v in enumerate(verdicts)]\n"
        "counts = {v: verdicts.count(v) for v in ('right', 'wrong', 'refused', 'error')}\n"
        "plain = {'outputs': 2, 'median_ratio': 1, 'largest_ratio': 1, 'beyond_twice_and_band': 0}\n"
        "report = {'machine': 'none', 'commit': 'c', 'backend': 'cudnn', 'seed': seed, 'results': results, 'summary': {**counts, 'plain_attention': plain}}\n"
        "json.dump(report, open(sys.argv[2], 'w'))\n"
    )
    shell = tmp_path / "check_suite.sh"
    shell.write_text(f'exec python3 {made} "$@"\n')
    monkeypatch.setattr(script, "CHECK_SUITE", shell)


def test_what_is_not_right_is_printed_with_its_program(script, check_suite, tmp_path, capsys):
    record = tmp_path / "record.json"
    assert script.main(["command", str(record), "--again", "7", "8", "--backends", "cudnn"]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if "random/" in line]
    assert len(lines) == 1 and lines[0].startswith("cudnn, seed 7: ")
    assert json.loads(lines[0].removeprefix("cudnn, seed 7: "))["program"] == "value = score"
    assert [(row["seed"], row["wrong"]) for row in json.loads(record.read_text())] == [(7, 1), (8, 0)]


def test_new_seeds_are_added_to_a_record(script, check_suite, tmp_path):
    record = tmp_path / "record.json"
    assert script.main(["command", str(record), "--again", "8", "--backends", "cudnn"]) == 0
    assert script.main(["command", str(record), "--seeds", "2", "--backends", "cudnn"]) == 0
    seeds = [row["seed"] for row in json.loads(record.read_text())]
    assert seeds[0] == 8 and len(set(seeds)) == 3
