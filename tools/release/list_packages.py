#!/usr/bin/env python3
"""Writes docs/internals/packages.json: each Python package that is pinned, with its licence and what asks for it.

usage: list_packages.py [ENVIRONMENT=FOLDER...]

The environments are those of ENVIRONMENTS, which ./dev makes. Versions are those of the requirement files. Licences, and who asks for a package, come
from the metadata of what is installed. A package that is not installed, as another platform's, keeps those of the file. bench/show_records.py writes
docs/internals/packages.md with it. The exit code is 1 where nothing is known of a package.
"""

import json
import re
import sys
from importlib.metadata import distributions
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
RECORD = "docs/internals/packages.json"
# Environment -> its folder, and the files that pin its packages.
ENVIRONMENTS = {
    ".venv": (".venv", ("requirements.txt", "requirements-no-deps.txt", "requirements-cudnn-headers.txt")),
    ".venv-torch": (".venv-torch", ("tests/torch/requirements.txt",)),
    "pages": ("build/docs-tools", ("tools/pages/requirements.txt",)),
}
# Licences of packages whose metadata names none that is theirs.
LICENCES = {"matplotlib": "Matplotlib's licence"}
NVIDIA = "NVIDIA's licence"
_SHORT = {
    "Apache Software License": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache Software License 2.0": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0",
    "3-Clause BSD License": "BSD-3-Clause",
    "ISC License": "ISC",
    "MIT License": "MIT",
    "BSD License": "BSD",
    "BSD-3-Clause License": "BSD-3-Clause",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "ISC License (ISCL)": "ISC",
}


def normalized(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(file, root=ROOT):
    """{name: version} of a requirement file."""
    text = (root / file).read_text(encoding="utf-8")
    return {normalized(name): version for name, version in re.findall(r"^([\w.-]+)==([^\s;]+)", text, re.MULTILINE)}


def licence(metadata):
    """The licence of a package as its metadata has it: an expression, a short text, or a classifier; "" where it says nothing."""
    name = normalized(metadata["Name"])
    if expression := metadata.get("License-Expression"):
        return NVIDIA if "NVIDIA" in expression else expression
    text = metadata.get("License") or ""
    classified = [each.rpartition(" :: ")[2] for each in metadata.get_all("Classifier", []) if each.startswith("License :: ")]
    if name in LICENCES:
        return LICENCES[name]
    if "NVIDIA" in text or any("NVIDIA" in each for each in classified):
        return NVIDIA
    if not text or "\n" in text or len(text) > 40 or text == "UNKNOWN":
        text = next((each for each in classified if each != "OSI Approved"), "")
    return _SHORT.get(text, text)


def needs(installed):
    """{name: names of what it needs} of installed distributions by their names, with the extras that others ask for."""
    found, extras, asked = {name: set() for name in installed}, {name: {""} for name in installed}, {(name, "") for name in installed}
    while asked:
        name, extra = asked.pop()
        for each in map(Requirement, installed[name].requires or []):
            other = normalized(each.name)
            if other not in installed or not (each.marker is None or each.marker.evaluate({"extra": extra})):
                continue
            found[name] |= {other} - {name}
            asked |= {(other, of_other) for of_other in each.extras if of_other not in extras[other]}
            extras[other] |= each.extras
    return found


def is_direct(package, version, root=ROOT):
    """Whether somebody chose it: docs/internals/dependencies.md has a row of it, with this version or with a bound."""
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|", (root / "docs/internals/dependencies.md").read_text(encoding="utf-8"), re.MULTILINE)
    versions = [of.split(", ") for names, of in rows if package in map(normalized, names.split(", "))]
    return any(version in of or of[0].startswith(">=") for of in versions)


def rows(name, folder, before):
    """The rows of an environment. before: those of the file as it was, by name."""
    installed = {normalized(each.metadata["Name"]): each for each in distributions(path=[str(path) for path in folder.glob("lib/python*/site-packages")])}
    versions = {package: version for file in ENVIRONMENTS[name][1] for package, version in pinned(file).items()}
    needed, found = needs(installed), []
    for package, version in sorted(versions.items()):
        row = {"name": package, "version": version, **{key: before.get(package, {}).get(key) for key in ("licence", "required_by")}}
        if package in installed:
            asking = sorted(other for other in needed if other in versions and package in needed[other])
            row |= {"licence": licence(installed[package].metadata), "required_by": asking}
        found.append(row | {"direct": is_direct(package, version)})
    return found


def faults(environments):
    """A line for each package of which something isn't known."""
    for name, packages in environments.items():
        yield from (f"{name}: {each['name']} has no licence" for each in packages if not each["licence"])
        yield from (f"{name}: nothing asks for {each['name']}" for each in packages if not each["required_by"] and not each["direct"])


def main():
    path = ROOT / RECORD
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    folders = {name: ROOT / folder for name, (folder, _) in ENVIRONMENTS.items()} | {
        name: Path(folder) for name, _, folder in (each.partition("=") for each in sys.argv[1:])
    }
    listed = {name: rows(name, folders[name], {each["name"]: each for each in old.get(name, [])}) for name in ENVIRONMENTS}
    lines = (f'"{name}": [\n' + ",\n".join("  " + json.dumps(row) for row in packages) + "\n]" for name, packages in listed.items())
    path.write_text("{" + ",\n".join(lines) + "}\n", encoding="utf-8")
    unknown = list(faults(listed))
    print(*unknown, f"{sum(map(len, listed.values()))} packages in {RECORD}", sep="\n")
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
