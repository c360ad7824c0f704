"""Pages that strangers read: how long they are, how they begin, and how long their sentences are."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
FOR_USERS = [page for page in PAGES if page.parent.name in ("guide", "reference") or page.name == "performance.md"]
MOST_WORDS, SHARE, MOST_BYTES = 25, 0.9, 8000
# Pages that may be longer: one that leads everywhere, and a table of tests by their full names.
LONGER = {"overview": 9000, "acceptance": 20000}


def prose(text):
    """The text without examples, marks and formulas."""
    return re.sub(r"^```.*?^```|<!--.*?-->|^    [^\n]*", "", text, flags=re.DOTALL | re.MULTILINE)


def sentences(text):
    for paragraph in re.split(r"\n\s*\n", prose(text)):
        is_table = paragraph.lstrip().startswith("|")
        parts = [cell for row in paragraph.split("\n") for cell in row.split("|")] if is_table else re.split(r"\n(?=[-*] |\d+\. )", paragraph)
        for part in parts:
            words = re.sub(r"\]\([^)]*\)", "]", " ".join(part.split()))
            yield from filter(None, re.split(r"(?<=[.!?])[\"')`]*\s+", words))


def share_of_short(pages):
    counts = [len([word for word in sentence.split() if re.search(r"\w", word)]) for text in pages for sentence in sentences(text)]
    return sum(count <= MOST_WORDS for count in counts) / len(counts)


@pytest.mark.parametrize("page", FOR_USERS, ids=lambda page: f"{page.parent.name}/{page.stem}")
def test_a_page_for_users_is_short_and_begins_with_what_one_can_do(page):
    text = page.read_text(encoding="utf-8")
    assert len(text.encode()) < MOST_BYTES
    assert share_of_short([text]) >= SHARE
    first = re.sub(r"^#[^\n]*\n+", "", text).split("\n")[0]
    assert re.match(r"You can \w+", first), first


@pytest.mark.parametrize("page", [page for page in FOR_USERS if page.parent.name == "guide"], ids=lambda page: page.stem)
def test_a_page_of_the_guide_shows_an_example_in_the_first_screen(page):
    lines = page.read_text(encoding="utf-8").split("\n")
    assert any(line.startswith("```") for line in lines[:12])


@pytest.mark.parametrize("page", [page for page in PAGES if page not in FOR_USERS], ids=lambda page: page.stem)
def test_a_page_for_developers_is_short_too(page):
    assert len(page.read_bytes()) < LONGER.get(page.stem, MOST_BYTES)


def test_how_to_contribute_is_a_page():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert len(text.encode()) < 4000
    assert share_of_short([text]) >= SHARE


def test_most_sentences_of_all_pages_are_short():
    assert share_of_short([page.read_text(encoding="utf-8") for page in PAGES]) >= SHARE


def test_a_long_sentence_is_seen():
    long = " ".join(["word"] * (MOST_WORDS + 1)) + "."
    assert share_of_short([f"# A\n\nShort. {long}\n"]) == pytest.approx(2 / 3)
    assert share_of_short([f"# A\n\n```\n{long}\n```\n\n| Short | {long} |\n"]) == pytest.approx(2 / 3)
