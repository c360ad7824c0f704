"""README and the pages of docs show the records in bench/results as they are committed."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
ROOT = Path(__file__).resolve().parents[2]
PEERS, BENCHMARK = "bench/results/peers.json", "bench/results/h200.json"
PAGE, ALL, OVERHEAD, CHECKED = "docs/performance.md", "docs/internals/peers.md", "docs/internals/overhead.md", "docs/internals/cudnn_findings.md"
BEGIN, END = "<!-- peers: written by bench/show_records.py -->", "<!-- peers: end -->"


def show_records(*arguments):
    done = subprocess.run([sys.executable, ROOT / "bench/show_records.py", *map(str, arguments)], capture_output=True, text=True)
    return done.returncode, [line.split()[0] for line in done.stdout.splitlines()], done.stderr


@pytest.fixture
def tree(tmp_path):
    """A copy of what is shown and of what shows it."""
    for folder in ("docs", "bench/results"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    shutil.copy(ROOT / "README.md", tmp_path)
    (tmp_path / "src").symlink_to(ROOT / "src")
    return tmp_path


def change(record, key):
    """One measured time is another one."""
    report = json.loads(record.read_text(encoding="utf-8"))
    row = next(row for row in report["results"] if row.get("ms") is not None and row.get(key[0]) == key[1])
    row["ms"] *= 1.01
    record.write_text(json.dumps(report), encoding="utf-8")


def test_what_is_committed_is_up_to_date():
    assert show_records("--check") == (0, [], "")
    assert (ROOT / ALL).read_text(encoding="utf-8").count("\n| `") > 25


RUN = {"sanitizer": "asan", "programs": ["scoremod_unit_tests"], "tests": 90, "of": 100, "skipped": 2, "seconds": 61.4}


def test_runs_under_sanitizers_are_shown_once_there_are_any(tree):
    record, page = tree / "bench/results/sanitizers.json", tree / "docs/internals/tested.md"
    record.unlink(missing_ok=True)
    show_records("--root", tree)
    assert "\nNo run is recorded yet.\n" in page.read_text(encoding="utf-8")
    run = {**RUN, "failed": [], "findings": {"A.B": ["ERROR: AddressSanitizer: heap-use-after-free"]}, "machine": "A CPU, 2 cores", "commit": "12345678"}
    record.write_text(json.dumps([run]), encoding="utf-8")
    assert show_records("--root", tree) == (0, ["docs/internals/tested.md"], "")
    assert "| 12345678 | asan | `scoremod_unit_tests` | 90 | 100 | 2 | 61 | 0 | 1 | A CPU, 2 cores |\n" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "record, key, shown",
    [
        (PEERS, ("implementation", "scoremod"), ["docs/speed.png", "bench/results/peers.png", ALL, PAGE]),
        (BENCHMARK, ("direction", "forward"), ["bench/results/h200.png", OVERHEAD]),
    ],
)
def test_another_number_is_noticed_and_shown(tree, record, key, shown):
    change(tree / record, key)
    before = {name: (tree / name).read_bytes() for name in shown}
    code, names, message = show_records("--check", "--root", tree)
    assert (code, names) == (1, shown) and "bench/show_records.py" in message
    assert {name: (tree / name).read_bytes() for name in shown} == before
    assert show_records("--root", tree) == (0, shown, "")
    assert all((tree / name).read_bytes() != before[name] for name in shown)
    assert show_records("--check", "--root", tree) == (0, [], "")


def test_only_the_part_is_written_anew(tree):
    page = (tree / OVERHEAD).read_text(encoding="utf-8")
    row = next(line for line in page.split("\n") if line.startswith("| `full` | no modifier"))
    (tree / OVERHEAD).write_text(page.replace(row + "\n", ""), encoding="utf-8")
    assert show_records("--root", tree) == (0, [OVERHEAD], "")
    assert (tree / OVERHEAD).read_text(encoding="utf-8") == page


@pytest.mark.parametrize("old, new", [(BEGIN, ""), (BEGIN, BEGIN + "\n" + BEGIN), (END, "")])
def test_marks_that_are_not_a_pair_are_named(tree, old, new):
    page = (tree / PAGE).read_text(encoding="utf-8")
    (tree / PAGE).write_text(page.replace(old, new), encoding="utf-8")
    code, _, message = show_records("--root", tree)
    assert code == 1 and f"expected one {BEGIN} and one {END} after it" in message, message


def test_a_figure_in_a_sentence_follows_its_record(tree):
    record, page = tree / "bench/results/cudnn_check.json", tree / CHECKED
    report = json.loads(record.read_text(encoding="utf-8"))
    before = f"<!--=cudnn_check.right-->{report['summary']['right']}<!--=--> were right"
    assert before in page.read_text(encoding="utf-8")
    report["summary"]["right"] += 1
    record.write_text(json.dumps(report), encoding="utf-8")
    code, names, _ = show_records("--check", "--root", tree)
    assert (code, names) == (1, [CHECKED])
    assert show_records("--root", tree) == (0, [CHECKED], "")
    assert f"<!--=cudnn_check.right-->{report['summary']['right']}<!--=--> were right" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "mark, part",
    [
        ("<!--=cudnn_check.rihgt-->1<!--=-->", "docs/reference/cache.md: expected a figure of bench/page_figures.py, found 'cudnn_check.rihgt'"),
        ("<!--=no_record.right-->1<!--=-->", "found 'no_record.right'"),
        ("<!--=cudnn_check.right-->1", "docs/reference/cache.md: expected <!--=--> after each figure's mark, and nowhere else"),
        ("1<!--=-->", "and nowhere else"),
    ],
)
def test_a_mark_that_is_none_is_named(tree, mark, part):
    page = tree / "docs/reference/cache.md"
    page.write_text(f"{page.read_text(encoding='utf-8')}\n{mark}\n", encoding="utf-8")
    code, _, message = show_records("--root", tree)
    assert code == 1 and part in message, message


def test_a_picture_that_is_missing_is_drawn(tree):
    (tree / "docs/speed.png").unlink()
    assert show_records("--root", tree) == (0, ["docs/speed.png"], "")
    assert (tree / "docs/speed.png").read_bytes().startswith(b"\x89PNG")
