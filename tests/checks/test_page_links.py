"""Links from page to page lead somewhere, their headings included, and the index of docs/ has every page."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")])


def prose(page):
    return re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def anchors(page):
    """The anchors that GitHub gives the page's headings."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def wrong_links(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        name, _, anchor = target.partition("#")
        if "://" in target:
            continue
        other = (page.parent / name).resolve() if name else page
        if not other.exists():
            yield f"{target}: no such file"
        elif anchor and anchor not in anchors(other):
            yield f"{target}: {other.name} has no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    assert not list(wrong_links(page))


def test_a_wrong_link_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A heading\n[fine](#a-heading) [gone](other.md) [misnamed](page.md#a-headline) [elsewhere](https://a/b)\n")
    assert [link.split(":")[0] for link in wrong_links(page)] == ["other.md", "page.md#a-headline"]


def test_the_index_has_every_page():
    docs = ROOT / "docs"
    listed = set(re.findall(r"\]\(([\w/]+\.md)", (docs / "README.md").read_text(encoding="utf-8")))
    assert listed == {page.relative_to(docs).as_posix() for page in docs.rglob("*.md")} - {"README.md"}
