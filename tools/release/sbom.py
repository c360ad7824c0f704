#!/usr/bin/env python3
"""Writes what the library and the wheel are made with as a CycloneDX list (SBOM), from the tables of docs/internals/dependencies.md.

usage: sbom.py FILE

Versions are those of the page, or of Debian's package on this machine where the page says "apt: PACKAGE".
"""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "internals" / "dependencies.md"
# Heading of the page -> the scope of what stands below it.
SCOPES = {"In the library and the wheel": "required", "At run time": "optional"}


def rows(heading):
    """The rows of the table below a heading of the page: [name, version, licence, why]."""
    section = PAGE.read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    table = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip().strip("`") for cell in row] for row in table]


def version_of(text):
    """(version, package URL's type) of a cell of the column of versions."""
    if text.startswith("apt: "):
        package = text.removeprefix("apt: ")
        found = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package], capture_output=True, text=True, check=False).stdout
        return found or "unknown", f"deb/debian/{package}"
    return text, None


def component(name, version, licence, why, scope):
    version, debian = version_of(version)
    url = f"pkg:{debian}@{version}" if debian else f"pkg:pypi/{name.lower()}@{version}"
    if not re.fullmatch(r"[\w.+~:-]+", version):  # a range has no place in a URL
        url = url.rpartition("@")[0]
    licences = [{"license": {"name": licence}} if " " in licence else {"license": {"id": licence}}]
    return {"type": "library", "name": name, "version": version, "scope": scope, "licenses": licences, "purl": url, "description": why}


def sbom():
    """The list as a dict."""
    project = re.search(r"project\(scoremod VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8"))[1]
    components = [component(*row, scope) for heading, scope in SCOPES.items() for row in rows(heading)]
    subject = {"type": "library", "name": "scoremod", "version": project, "licenses": [{"license": {"id": "Apache-2.0"}}]}
    return {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "metadata": {"component": subject}, "components": components}


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    Path(sys.argv[1]).write_text(json.dumps(sbom(), indent=2) + "\n", encoding="utf-8")
