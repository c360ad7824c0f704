#!/usr/bin/env python3
"""Makes requirement files with the hashes of the wheels that ./dev setup and ./dev torch may install.

usage: pin_requirements.py [--upgrade]

requirements.txt gets what requirements.in names and all that it needs. tests/torch/requirements.txt gets what tests/torch/requirements.in names, no more.
Packages that requirements.in does not name keep the versions of requirements.txt, unless --upgrade is given. Needs uv (pip install uv), which asks PyPI
what each of the environments below takes.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Folder of a requirements.in -> whether its requirements.txt gets what the named packages need, too.
FOLDERS = {".": True, "tests/torch": False}
PYTHONS, MACHINES = ("3.11", "3.12"), ("x86_64", "aarch64")
# Debian 12's C library.
PLATFORM = "manylinux_2_36"
HEADER = """\
# Made of requirements.in by tools/pin_requirements.py: all that it names{and_needs}, with the hashes of the wheels for Python {pythons}
# on {machines}.
"""
# A marker and a comment may follow the version.
LINE = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>[^\s;]+)", re.MULTILINE)


def normalized(name):
    """A package's name as PyPI compares names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def versions_of(text):
    """Name -> version of the requirements in a file's text."""
    return {normalized(match["name"]): match["version"] for match in LINE.finditer(text)}


def is_for(wheel, python, machine):
    """Whether an environment may install the wheel of this file's name."""
    tags, abi, platforms = wheel.removesuffix(".whl").split("-")[-3:]
    version = python.replace(".", "")

    def is_taken(tag):
        return tag in ("py3", f"py{version}", f"cp{version}") or (abi == "abi3" and tag.startswith("cp3") and int(tag[3:]) <= int(version[1:]))

    of_python = any(map(is_taken, tags.split(".")))
    return of_python and any(platform == "any" or ("manylinux" in platform and platform.endswith(machine)) for platform in platforms.split("."))


def resolved(named, python, machine, constraints, with_needs):
    """(name, version) -> the hashes of the wheels for an environment. with_needs: whether what the packages of the file `named` need is among them."""
    with tempfile.TemporaryDirectory() as folder:
        kept, made = Path(folder) / "constraints.txt", Path(folder) / "pylock.toml"
        kept.write_text("\n".join(constraints), encoding="utf-8")
        options = ["--python-version", python, "--python-platform", f"{machine}-{PLATFORM}", "--only-binary", ":all:", "--format", "pylock.toml"]
        options += [] if with_needs else ["--no-deps"]
        command = ["uv", "pip", "compile", str(named), *options, "--constraint", str(kept), "--output-file", str(made), "--quiet"]
        subprocess.run(command, check=True)
        packages = tomllib.loads(made.read_text(encoding="utf-8"))["packages"]
    return {
        (each["name"], each["version"]): {wheel["hashes"]["sha256"] for wheel in each["wheels"] if is_for(wheel["url"].rpartition("/")[2], python, machine)}
        for each in packages
    }


def marker(environments):
    """The marker of a requirement that some environments alone have; "" of one that all have."""
    if len(environments) == len(PYTHONS) * len(MACHINES):
        return ""
    pythons, machines = ({each[i] for each in environments} for i in (0, 1))
    if len(pythons) * len(machines) != len(environments):
        raise SystemExit(f"pin_requirements.py: no one marker names the environments {sorted(environments)}")
    terms = [f'python_version == "{python}"' for python in pythons if len(pythons) == 1]
    return " ; " + " and ".join([*terms, *(f'platform_machine == "{machine}"' for machine in machines if len(machines) == 1)])


def pinned(by_environment, with_needs=True):
    """The text of a requirements.txt. by_environment: (Python, machine) -> resolved() of it."""
    found = {}
    for environment, packages in by_environment.items():
        for package, hashes in packages.items():
            environments, all_hashes = found.setdefault(package, (set(), set()))
            environments.add(environment)
            all_hashes |= hashes
    entries = []
    for (name, version), (environments, hashes) in sorted(found.items()):
        entries.append(" \\\n    ".join([f"{name}=={version}{marker(environments)}", *(f"--hash=sha256:{each}" for each in sorted(hashes))]))
    header = HEADER.format(and_needs=" and needs" if with_needs else "", pythons=" and ".join(PYTHONS), machines=" and ".join(MACHINES))
    return header + "\n".join(entries) + "\n"


def pin(folder, with_needs, upgrade):
    """Makes the requirements.txt of a folder."""
    source, made = folder / "requirements.in", folder / "requirements.txt"
    named = versions_of(source.read_text(encoding="utf-8"))
    before = {} if upgrade else versions_of(made.read_text(encoding="utf-8"))
    constraints = [f"{name}=={version}" for name, version in before.items() if name not in named]
    found = {(python, machine): resolved(source, python, machine, constraints, with_needs) for python in PYTHONS for machine in MACHINES}
    made.write_text(pinned(found, with_needs), encoding="utf-8")


def main():
    if sys.argv[1:] not in ([], ["--upgrade"]):
        sys.exit(__doc__)
    for folder, with_needs in FOLDERS.items():
        pin(ROOT / folder, with_needs, upgrade=bool(sys.argv[1:]))


if __name__ == "__main__":
    main()
