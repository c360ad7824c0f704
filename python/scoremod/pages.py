"""The pages of docs/, of which the package carries copies, and how messages name them."""

import difflib
from pathlib import Path

from scoremod.errors import InvalidArgumentError

# The site's address. There is no such site yet; ./dev docs builds it.
SITE = "https://scoremod.invalid/docs/"


def command_for(topic):
    """The command that prints a page: command_for("reference/problem"). Messages name pages so, for it works wherever the package does, and so does the
    library (src/base/pages.hpp)."""
    return f"`scoremod docs {topic}`"


def folder():
    """The folder of the pages: inside the installed package, or in the checkout."""
    package = Path(__file__).resolve().parent
    return next((place for place in (package / "docs", package.parents[1] / "docs") if place.is_dir()), package / "docs")


def topics():
    """Name of each page, such as "guide/torch" -> its file."""
    found = sorted(folder().rglob("*.md"))
    return {page.relative_to(folder()).with_suffix("").as_posix(): page for page in found}


def names_of(topic):
    """The pages that a topic may mean: a page's name with or without its folder, or its address, as in "guide/torch" and "torch"."""
    named = _plain(topic)
    return [name for name in topics() if named in (name, name.split("/")[-1])] or [name for name in topics() if named.replace(" ", "_") == name.split("/")[-1]]


def _plain(topic):
    return topic.removeprefix(SITE).partition("#")[0].strip("/").removesuffix(".md")


def text(topic):
    """The Markdown of the page that a topic means. Raises InvalidArgumentError where it is none, or several."""
    found, pages = names_of(topic), topics()
    if len(found) == 1:
        return pages[found[0]].read_text(encoding="utf-8")
    if found:
        raise InvalidArgumentError(f"docs: expected one page, found {', '.join(found)} by {topic!r}; give it with its folder")
    near = difflib.get_close_matches(_plain(topic).split("/")[-1], [name.split("/")[-1] for name in pages], 1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise InvalidArgumentError(f"docs: expected a page, or words of one, found {topic!r}{hint}; `scoremod docs` lists the pages")


def mentions(words):
    """(topic, line) of the guide and the reference, for each line that has these words: ids of reasons, parts of messages, names of arguments."""
    looked = words.casefold()
    for name, page in topics().items():
        if not name.startswith("internals/"):
            yield from ((name, line) for line in page.read_text(encoding="utf-8").splitlines() if looked in line.casefold())
