"""The pages of docs/: where they are on the network, and the copies that the package carries."""

import difflib
from pathlib import Path

from scoremod.errors import InvalidArgumentError

# The site of these pages. There is none yet; ./dev docs builds it, and src/base/pages.hpp says the same in C++.
SITE = "https://scoremod.invalid/docs/"


def address(topic):
    """A page's address on the network: address("reference/problem#sizes"). Messages name pages so."""
    path, _, heading = topic.partition("#")
    return f"{SITE}{path}/" + (f"#{heading}" if heading else "")


def folder():
    """The folder of the pages: inside the installed package, or in the checkout."""
    package = Path(__file__).resolve().parent
    return next((place for place in (package / "docs", package.parents[1] / "docs") if place.is_dir()), package / "docs")


def topics():
    """Name of each page, such as "guide/torch" -> its file."""
    found = sorted(folder().rglob("*.md"))
    return {page.relative_to(folder()).with_suffix("").as_posix(): page for page in found}


def text(topic):
    """A page's Markdown. A topic is a page's name with or without its folder: "guide/torch", "torch"."""
    pages = topics()
    named = topic.removesuffix(".md").strip("/")
    found = [name for name in pages if named in (name, name.split("/")[-1])] or [name for name in pages if named.replace(" ", "_") == name.split("/")[-1]]
    if len(found) == 1:
        return pages[found[0]].read_text(encoding="utf-8")
    if found:
        raise InvalidArgumentError(f"docs: expected one page, found {', '.join(found)} by {topic!r}; give it with its folder")
    near = difflib.get_close_matches(named.split("/")[-1], [name.split("/")[-1] for name in pages], 1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise InvalidArgumentError(f"docs: expected one of {', '.join(pages)}; found {topic!r}{hint}")
