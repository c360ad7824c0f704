"""The page of dependencies has every one, in the version of its requirement file, and the list of a release is made of it."""

import json
import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "release"))
import list_packages  # noqa: E402
import sbom  # noqa: E402

FILES = (
    *("requirements.in", "requirements-no-deps.txt", "requirements-cudnn-headers.txt", "tools/wheel/requirements.txt", "tools/pages/requirements.txt"),
    "fuzz/requirements.txt",
)
HEADINGS = (*sbom.SCOPES, "To build, test and write pages")


def listed():
    """name -> version, of every row of the page; several share a row."""
    found = {}
    for heading in HEADINGS:
        for names, versions, *_ in sbom.rows(heading):
            names, versions = names.split(", "), versions.split(", ")
            found |= dict(zip((name.lower() for name in names), versions if len(versions) == len(names) else versions * len(names)))
    return found


def pinned(file):
    """name -> version of what a file asks for; what these need in turn follows a line that says so."""
    asked = (ROOT / file).read_text(encoding="utf-8").split("# These need what follows.")[0]
    return {name.lower(): version for name, version in re.findall(r"^([\w.-]+)==(\S+)", asked, re.MULTILINE)}


@pytest.mark.parametrize("file", ["requirements.txt", "tests/torch/requirements.txt", *(file for file in FILES if file != "requirements.in")])
def test_each_pinned_package_has_hashes(file):
    entries = re.split(r"^(?=[\w.-]+==)", (ROOT / file).read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    assert len(entries) > (file != "fuzz/requirements.txt")  # which has one package
    assert [entry.split()[0] for entry in entries if not re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry)] == []


@pytest.mark.parametrize("file", FILES)
def test_each_pinned_package_is_on_the_page(file):
    page = listed()
    # The table of run time has the oldest versions of these.
    oldest = ("numpy", "jax", "flax", "matplotlib")
    assert {name: page.get(name) for name in pinned(file) if name not in oldest} == {n: v for n, v in pinned(file).items() if n not in oldest}


def test_pytorchs_packages_are_on_the_page():
    assert listed()["transformers"] == pinned("tests/torch/requirements.in")["transformers"]


def packages_listed():
    return json.loads((ROOT / list_packages.RECORD).read_text(encoding="utf-8"))


def test_each_pinned_package_is_listed_with_who_asks_for_it():
    """The wheel's tools and the fuzzers have no more than the page has, as the test above finds."""
    found = packages_listed()
    assert list(list_packages.faults(found)) == []
    for name, (_, files) in list_packages.ENVIRONMENTS.items():
        versions = {package: version for file in files for package, version in list_packages.pinned(file).items()}
        assert len(versions) > 30 and {each["name"]: each["version"] for each in found[name]} == versions, "run tools/release/list_packages.py"
        assert {asking for each in found[name] for asking in each["required_by"]} <= set(versions)
    on_page = {list_packages.normalized(name): version for name, version in listed().items()}
    direct = [each for packages in found.values() for each in packages if each["direct"]]
    assert direct and all(on_page[each["name"]] == each["version"] or on_page[each["name"]].startswith(">=") for each in direct)


def test_licences_are_those_of_what_is_installed():
    compared = 0
    for each in packages_listed()[".venv"]:
        try:
            compared += 1
            assert list_packages.licence(metadata(each["name"])) == each["licence"], each["name"]
        except PackageNotFoundError:  # another platform's
            compared -= 1
    assert compared > 50


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ({"licence": "", "required_by": ["jax"], "direct": False}, ".venv: scipy has no licence"),
        ({"licence": "BSD", "required_by": [], "direct": False}, ".venv: nothing asks for scipy"),
        ({"licence": "BSD", "required_by": [], "direct": True}, None),
    ],
)
def test_a_package_without_a_licence_or_a_reason_is_found(row, fault):
    assert list(list_packages.faults({".venv": [{"name": "scipy", **row}]})) == [fault] * (fault is not None)


def test_bounds_are_those_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bounds = [*project["dependencies"], *(each for extra in project["optional-dependencies"].values() for each in extra)]
    assert {f"{name}{version}" for name, version, *_ in sbom.rows("At run time")} == {each for each in bounds if not each.startswith("scoremod")}


def test_packages_of_the_system_are_those_of_dev():
    installed = (ROOT / "dev").read_text(encoding="utf-8").split("APT_PACKAGES=(")[1].split(")")[0].split()
    assert {version.removeprefix("apt: ") for _, version, *_ in sbom.rows("In the library and the wheel") if version.startswith("apt: ")} <= set(installed)


def test_the_list_has_what_is_linked():
    made = sbom.sbom()
    assert made["bomFormat"] == "CycloneDX" and made["metadata"]["component"]["version"][0].isdigit()
    components = {each["name"]: each for each in made["components"]}
    assert {"Highway", "nlohmann-json", "nvidia-cudnn-frontend", "numpy"} <= set(components)
    assert components["nvidia-cudnn-frontend"]["purl"] == "pkg:pypi/nvidia-cudnn-frontend@1.23.0"
    assert components["Highway"]["purl"].startswith("pkg:deb/debian/libhwy-dev")
    assert components["numpy"]["purl"] == "pkg:pypi/numpy" and components["numpy"]["scope"] == "optional"
    assert all(each["licenses"] and each["description"] for each in made["components"])
