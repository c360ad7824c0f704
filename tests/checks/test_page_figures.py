"""A measured figure on a page comes from its record by a mark, or stands here with the reason why no record has it."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("page_figures", ROOT / "bench" / "page_figures.py")
page_figures = importlib.util.module_from_spec(spec)
spec.loader.exec_module(page_figures)

# (page, heading) -> why, and the figures.
UNRECORDED = {
    ("docs/internals/cudnn.md", "Predicted times"): ("what tools/fit_score_costs.py printed of its fit", ["0.3 %", "90 %", "4 %", "0.5 %", "2 %"]),
    ("docs/internals/cudnn_findings.md", "Before writing a pattern by hand"): (
        "single patterns' times of the table of one version, which a later run does not change",
        ["4.2 ms", "8.2 ms", "2.5 ms", "2.4 ms", "3.2 ms", "0.05 ms", "0.93 ms", "1.00 ms", "0.99 ms", "1.52 ms"],
    ),
    ("docs/internals/overhead.md", "What scoremod adds to cuDNN"): ("targets", ["10 ms", "100 us"]),
    ("docs/performance.md", "Measuring"): ("how it is measured", ["4 ms"]),
    ("docs/reference/check_suite.md", "What is checked"): ("counted once over 2000 random problems", ["4 %", "23 %", "57 %", "76 %"]),
}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def without_record(page):
    """The unmarked figures of a page that are not in the list, each with its heading."""
    name = page.relative_to(ROOT).as_posix()
    found = []
    for heading, figure in page_figures.unmarked(page.read_text(encoding="utf-8")):
        if figure not in UNRECORDED.get((name, heading), ("", []))[1]:
            found.append(f"{heading}: {figure}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_figures_come_from_records(page):
    found = without_record(page)
    assert not found, "mark them (bench/page_figures.py), or say in UNRECORDED why no record has them"


def test_the_list_has_what_is_on_the_pages_alone():
    on_pages = {(page.relative_to(ROOT).as_posix(), *each) for page in PAGES for each in page_figures.unmarked(page.read_text(encoding="utf-8"))}
    for (name, heading), (_, figures) in UNRECORDED.items():
        for figure in figures:
            assert (name, heading, figure) in on_pages, "no page has it any more: take it out of UNRECORDED"


def test_every_figure_that_can_be_marked_is():
    marked = {name for page in PAGES for name, _ in page_figures.MARK.findall(page.read_text(encoding="utf-8"))}
    offered = {f"{record}.{name}" for record, figures in page_figures.FIGURES.items() for name in figures}
    assert marked == offered


@pytest.mark.parametrize(
    "text, figures",
    [
        ("a forward takes 0.82 ms, 12 % less, at 580 TFLOP/s and 1.8 times the time", ["0.82 ms", "12 %", "580 TFLOP/s", "1.8 times"]),
        ("of 1540 results 1500 were right and 40 refused, at commit 84118ee", ["1540 results", "40 refused", "commit 84118ee"]),
        ("| case | forward ms |\n|---|---|\n| plain | 0.91 |", ["0.91"]),
        ("| case | version |\n|---|---|\n| plain | 0.91 |", []),
        ("heads 16, length 4096, jax 0.11.2, `0.82 ms`, a batch of 4\n\n    took 3 ms\n\n```\n4 ms\n```\n", []),
        ("takes <!--=h200.commit-->0.82<!--=--> ms", []),
        ("<!-- x: written by bench/show_records.py -->\n| ms |\n|---|\n| 0.91 |\n<!-- x: end -->\n3 ms", ["3 ms"]),
    ],
)
def test_what_counts_as_measured(text, figures):
    assert [figure for _, figure in page_figures.unmarked(f"# Heading\n{text}")] == figures


def unread_records(root):
    """Files of bench/results that nothing names: no page, script or test."""
    folders = ("README.md", "bench", "docs", "integrations", "src", "tests", "tools")
    files = [path for name in folders for path in ((root / name).rglob("*") if (root / name).is_dir() else [root / name])]
    results = root / "bench" / "results"
    kinds = {".cpp", ".cuh", ".hpp", ".md", ".py", ".sh"}
    text = "\n".join(path.read_text(encoding="utf-8") for path in files if path.suffix in kinds and results not in path.parents)
    return [path.name for path in sorted(results.iterdir()) if path.name not in text and path.stem not in page_figures.FIGURES]


def test_every_record_has_a_reader():
    assert unread_records(ROOT) == [], "name it on the page that it is about, or delete it"


def test_a_record_without_a_reader_is_found(tmp_path):
    (tmp_path / "bench" / "results").mkdir(parents=True)
    for name in ("h200.json", "unnamed.json"):
        (tmp_path / "bench" / "results" / name).write_text("{}")
    (tmp_path / "README.md").write_text("bench/results/h200.json")
    assert unread_records(tmp_path) == ["unnamed.json"]
