"""The Python of README and of docs/, by the framework that it is for: tests of each framework run theirs.

A page's blocks run one after the other in one module. A block that imports a framework begins its part of the page. Code of other libraries
is marked `py` in place of `python`, and not run.
"""

import functools
import re
import sys
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FRAMEWORKS = ("jax", "torch")


def blocks_of(text):
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def framework_of(block, before):
    """The framework that a block imports, or else the one of the block before it; "numpy" where there is none."""
    return next((name for name in FRAMEWORKS if re.search(rf"^(?:import|from) (?:scoremod\.)?{name}\b", block, re.MULTILINE)), before)


def parts_of(text):
    """framework -> its blocks."""
    parts, framework = {}, "numpy"
    for block in blocks_of(text):
        framework = framework_of(block, framework)
        parts.setdefault(framework, []).append(block)
    return parts


@functools.cache
def parts_of_pages():
    """Name of a page -> its parts. README has one part for each framework, too."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return {page.relative_to(ROOT).as_posix(): parts_of(page.read_text(encoding="utf-8")) for page in pages}


def pages_for(framework):
    return [name for name, parts in parts_of_pages().items() if framework in parts]


def run_page(name, framework):
    """The names that a page's blocks leave."""
    # Some of PyTorch finds a function's module by its name.
    module = sys.modules["page"] = types.ModuleType("page")
    try:
        for block in parts_of_pages()[name][framework]:
            exec(compile(block, name, "exec"), module.__dict__)  # noqa: S102 (it is our own page)
    finally:
        del sys.modules["page"]
    return module.__dict__
