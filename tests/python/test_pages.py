"""The pages that the package carries, and how messages name them."""

import re
from pathlib import Path

import pytest

import scoremod
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
    with pytest.raises(InvalidArgumentError, match=r"expected a page, or words of one, found 'torhc' \(did you mean 'torch'\?\); `scoremod docs` lists"):
        pages.text("torhc")


def named_pages(folders, pattern):
    for folder in folders:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".cpp", ".hpp", ".cuh", ".h"):
                yield from re.findall(pattern, path.read_text(encoding="utf-8"))


def test_messages_name_pages_that_exist():
    named = {*named_pages(["python"], r"command_for\(['\"]([\w/]+)"), *named_pages(["src"], r"SCOREMOD_PAGE\(\"([\w/]+)")}
    assert len(named) >= 4 and all(map(pages.text, named))


def test_comments_name_pages_that_exist():
    named = set(named_pages(["python", "src", "include", "bindings", "tools", "tests", "bench"], r"\bdocs/((?:guide|reference|internals)/\w+)\.md"))
    assert len(named) > 10 and named <= set(pages.topics())


def test_messages_of_the_library_name_the_command():
    with pytest.raises(InvalidArgumentError, match=re.escape(f"; {pages.command_for('reference/ops')} lists the functions")):
        scoremod.Attention({"batch": 1, "heads_q": 2, "seq_q": 8, "dim_qk": 16, "program": "value = acos(score)"})


def test_the_address_of_a_page_is_a_name_of_it(capsys):
    assert printed(capsys, f"{pages.SITE}guide/torch/") == printed(capsys, "guide/torch")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("no_device", r"reference/unsupported_reasons: \| `no_device` \|"),
        ("Traced Anew", r"guide/troubleshooting: .*`explain\(...\).why_not_kept` names the line"),
        ("SCOREMOD_WARN_MIB", r"reference/environment: \| `SCOREMOD_WARN_MIB` \|"),
    ],
)
def test_ids_and_words_of_messages_are_found(capsys, words, line):
    code, found, _ = printed(capsys, words)
    assert code == 0 and re.search(f"^{line}", found, re.MULTILINE)


def test_each_id_of_a_reason_is_found(capsys):
    for reason in scoremod.support({"batch": 1, "heads_q": 2, "seq_q": 8, "dim_qk": 16, "sink": "off_by_one", "dropout": 0.5}):
        for refusal in reason["refusals"]:
            code, found, _ = printed(capsys, refusal["id"])
            assert code == 0 and f"reference/unsupported_reasons: | `{refusal['id']}` |" in found


def messages_of_the_sources():
    """The literals of all messages, in which adjacent ones are one text, and what is put in is "..."."""
    put_in = {".py": r"\{[^{}]*\}", ".cpp": r'",\s*[\w.()]+,\s*"', ".hpp": r'",\s*[\w.()]+,\s*"'}
    files = [path for folder in ("python", "src", "bindings") for path in (ROOT / folder).rglob("*") if path.suffix in put_in]
    return "\n".join(re.sub(put_in[path.suffix], "...", re.sub(r'"\s*f?"', "", path.read_text(encoding="utf-8"))) for path in files)


def quoted(page):
    """Texts in quotes in the first column of a page's tables: what people see, and look up there."""
    cells = re.findall(r"^\| ([^|]*) \|", page, re.MULTILINE)
    return [text for cell in cells for text in re.findall(r'(?<!`)"([^"`]+)"', cell)]


def test_the_messages_that_troubleshooting_explains_are_said():
    sources, explained = messages_of_the_sources(), quoted(pages.text("guide/troubleshooting"))
    assert len(explained) > 8
    assert [text for text in explained if text not in sources] == []
    assert quoted('| "a text", "another" | b |\n| `"code"` | c |') == ["a text", "another"]
