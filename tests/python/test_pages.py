"""The pages that the package carries, and how messages name them."""

import re
from pathlib import Path

import pytest

from scoremod import InvalidArgumentError, command, pages

ROOT = Path(__file__).resolve().parents[2]


def printed(capsys, *arguments):
    code = command.main(["docs", *arguments])
    return code, *capsys.readouterr()


@pytest.mark.parametrize("topic", ["guide/torch", "torch", "torch.md"])
def test_a_page_is_printed(capsys, topic):
    assert printed(capsys, topic) == (0, (ROOT / "docs/guide/torch.md").read_text(encoding="utf-8"), "")


def test_the_list_has_every_page(capsys):
    _, listed, _ = printed(capsys)
    assert listed.split() == sorted(page.relative_to(ROOT / "docs").with_suffix("").as_posix() for page in (ROOT / "docs").rglob("*.md"))


def test_two_pages_of_one_name_need_their_folder(capsys):
    code, _, message = printed(capsys, "masks")
    assert code == 2 and "found guide/masks, reference/masks by 'masks'; give it with its folder" in message


def test_a_page_that_is_none_is_refused():
    with pytest.raises(InvalidArgumentError, match=r"expected one of README, guide/c, .*; found 'torhc' \(did you mean 'torch'\?\)"):
        pages.text("torhc")


def named_pages(folders, pattern):
    for folder in folders:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".cpp", ".hpp", ".cuh", ".h"):
                yield from re.findall(pattern, path.read_text(encoding="utf-8"))


def test_addresses_name_pages_that_exist():
    named = {*named_pages(["python"], r"address\(['\"]([\w/]+)"), *named_pages(["src"], r"SCOREMOD_PAGE\(\"([\w/]+)")}
    assert len(named) >= 4 and named <= set(pages.topics())


def test_comments_name_pages_that_exist():
    named = set(named_pages(["python", "src", "include", "bindings", "tools", "tests", "bench"], r"\bdocs/((?:guide|reference|internals)/\w+)\.md"))
    assert len(named) > 10 and named <= set(pages.topics())


def test_both_languages_have_one_site():
    header = (ROOT / "src/base/pages.hpp").read_text(encoding="utf-8")
    assert re.search(r'SCOREMOD_SITE "(.+)"', header)[1] == pages.SITE
    assert pages.address("reference/problem#sizes") == f"{pages.SITE}reference/problem/#sizes"
