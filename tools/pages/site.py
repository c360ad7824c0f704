"""Hooks of mkdocs: the site's address, links to files of the repository, and the docstrings of the Python API."""

import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The modules of docs/reference/python_api.md, whose docstrings stand below its tables.
MODULES = (
    "scoremod", "scoremod.cache", "scoremod.torch", "scoremod.jax", "scoremod.jax.context_parallel", "scoremod.jax.linen", "scoremod.jax.nnx",
    "scoremod.jax.transformer_engine", "scoremod.jax.transformer_layer", "scoremod.jax.zoo",
)  # fmt: skip
LINK = re.compile(r"\]\(([^)#\s]+)([^)\s]*)\)")


def site():
    """The constant of scoremod.pages, which cannot be imported here: NumPy is not among the tools."""
    return re.search(r'^SITE = "(.+)"$', (ROOT / "python/scoremod/pages.py").read_text(encoding="utf-8"), re.MULTILINE)[1]


def on_config(config):
    config.site_url = site()
    return config


def with_links_to_sources(text, page, source):
    """Links to what is not below docs/ lead to the repository's address `source`."""

    def link(found):
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), found[1]))
        outside = "://" not in found[1] and not path.startswith("docs/") and (ROOT / path).exists()
        return f"]({source}{path}{found[2]})" if outside else found[0]

    return LINK.sub(link, text)


def on_page_markdown(markdown, page, config, files):
    path = page.file.src_uri
    if path == "reference/python_api.md":
        markdown += "".join(f"\n\n## `{module}`\n\n::: {module}\n" for module in MODULES)
    if path.startswith("cpp/"):
        # MkDoxy links to enums without a name, which have no heading.
        return re.sub(r"\[([^\]]*)\]\([^)\s]*#enum-@\d+\)", r"\1", markdown)
    return with_links_to_sources(markdown, path, config.repo_url)
