#!/usr/bin/env python3
"""Brings up to date what the pages show of the committed records: draws each picture, and writes parts of pages and marked figures.

usage: show_records.py [--check] [--root FOLDER]

To be run after a record in bench/results changed. --check writes nothing, names what shows another record than the committed one, and exits with 1 then.
A picture carries the digest of the record that it was drawn from. Needs matplotlib, which ./dev installs into .venv.
"""

import argparse
import functools
import hashlib
import importlib.util
import json
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
# Picture -> the record that it shows, and the script that draws it; all below the root.
PICTURES = {
    "docs/speed.png": ("bench/results/peers.json", "front_page.py"),
    "bench/results/peers.png": ("bench/results/peers.json", "peers/plot.py"),
    "bench/results/h200.png": ("bench/results/h200.json", "plot.py"),
}
# Page -> parts of it, each between marks that name it -> the record that it shows, and the script and its function that write it.
PARTS = {
    "docs/internals/foreign_tests.md": {
        "foreign suites": ("bench/results/foreign_suites.json", "foreign/tables.py", "suites"),
        "foreign differences": ("bench/results/foreign_suites.json", "foreign/tables.py", "differences"),
    },
    "docs/internals/tested.md": {
        "coverage": ("bench/results/coverage.json", "tested_tables.py", "coverage"),
        "mutants": ("bench/results/mutants.json", "tested_tables.py", "mutants"),
        "sanitizers": ("bench/results/sanitizers.json", "tested_tables.py", "sanitizers"),
        "fuzzers": ("bench/results/fuzzers.json", "tested_tables.py", "fuzzers"),
        "frontend problems": ("bench/results/sdpa_problems.json", "tested_tables.py", "sdpa_problems"),
        "threads": ("bench/results/threads.json", "tested_tables.py", "threads"),
    },
    "docs/internals/planted_faults.md": {
        "planted in kernels": ("bench/results/planted_faults.json", "tested_tables.py", "planted_in_kernels"),
        "planted in the library": ("bench/results/planted_faults.json", "tested_tables.py", "planted_in_library"),
    },
    "docs/internals/planted_faults_python.md": {
        "planted in Python": ("bench/results/planted_faults.json", "tested_tables.py", "planted_in_python"),
    },
    "docs/internals/packages.md": {
        "packages": ("docs/internals/packages.json", "package_tables.py", "packages"),
    },
    "docs/internals/peers.md": {
        "all cases": ("bench/results/peers.json", "peers/choices.py", "table"),
    },
    "docs/internals/overhead.md": {
        "by hand": ("bench/results/h200.json", "by_hand_table.py", "table"),
    },
    "docs/performance.md": {
        "peers": ("bench/results/peers.json", "peers/choices.py", "summary"),
        "faster peers": ("bench/results/peers.json", "peers/choices.py", "slower"),
    },
    "docs/reference/times.md": {
        "speed": ("bench/results/jax_h200.json", "jax/record_tables.py", "speed"),
        "sharding": ("bench/results/jax_sharding.json", "jax/record_tables.py", "sharding"),
    },
}
# Lists of runs that need not have been made yet.
MAY_BE_ABSENT = {"bench/results/sanitizers.json"}
METADATA = "Record"


@functools.cache
def script(name):
    """The module of a script in this folder."""
    spec = importlib.util.spec_from_file_location(f"show_records_{Path(name).stem}", FOLDER / name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def report_of(record):
    return json.loads(record.read_text(encoding="utf-8"))


def digest(record):
    """SHA-256 of a record's values: how they are laid out in the file doesn't count."""
    return hashlib.sha256(json.dumps(report_of(record), sort_keys=True).encode()).hexdigest()


def drawn_digest(picture):
    from PIL import Image

    with Image.open(picture) as image:
        return image.text.get(METADATA)


def draw(picture, record, name):
    from PIL import Image, PngImagePlugin

    script(name).draw(report_of(record), picture)
    stamp = PngImagePlugin.PngInfo()
    stamp.add_text(METADATA, digest(record))
    with Image.open(picture) as image:
        image.save(picture, pnginfo=stamp, optimize=True)


def with_part(page, path, name, lines):
    """The page's text with other lines between the marks of a part."""
    begin, end = f"<!-- {name}: written by bench/show_records.py -->\n", f"<!-- {name}: end -->\n"
    found = page.count(begin), page.count(end)
    if found != (1, 1) or page.index(end) < page.index(begin):
        sys.exit(f"expected one {begin.strip()} and one {end.strip()} after it in {path}, found {found[0]} and {found[1]}")
    return page[: page.index(begin)] + begin + "\n" + "\n".join(lines) + "\n\n" + page[page.index(end) :]


def pages(root):
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def written(page, path, root):
    """The page's text with its parts and its marked figures as the records have them."""
    text = page.read_text(encoding="utf-8")
    for name, (record, writer, function) in PARTS.get(path, {}).items():
        report = [] if record in MAY_BE_ABSENT and not (root / record).exists() else report_of(root / record)
        text = with_part(text, path, name, getattr(script(writer), function)(report))
    try:
        return script("page_figures.py").with_figures(text, path, root)
    except ValueError as error:
        sys.exit(str(error))


def outdated(root):
    """Pages and pictures that show another record than the committed one: [(path, a function that updates it)]."""
    found = []
    for name, (record, drawer) in PICTURES.items():
        picture, record = root / name, root / record
        if not picture.is_file() or drawn_digest(picture) != digest(record):
            found.append((name, lambda picture=picture, record=record, drawer=drawer: draw(picture, record, drawer)))
    for page in pages(root):
        path = page.relative_to(root).as_posix()
        before, after = page.read_text(encoding="utf-8"), written(page, path, root)
        if after != before:
            found.append((path, lambda page=page, after=after: page.write_text(after, encoding="utf-8")))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, and exit with 1 where something is out of date")
    parser.add_argument("--root", type=Path, default=FOLDER.parent, help="the folder that has bench/results and docs")
    options = parser.parse_args()
    found = outdated(options.root)
    for name, update in found:
        if not options.check:
            update()
        print(f"{name} {'shows another record than bench/results has' if options.check else 'is up to date now'}")
    if options.check and found:
        sys.exit("run .venv/bin/python bench/show_records.py, and commit what it writes")


if __name__ == "__main__":
    main()
