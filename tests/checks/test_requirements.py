"""Each requirements.txt has what its requirements.in names, all that is needed, and hashes: what tools/pin_requirements.py makes of it."""

import re
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import pin_requirements  # noqa: E402

EVERYWHERE = [(python, machine) for python in pin_requirements.PYTHONS for machine in pin_requirements.MACHINES]


def requirements(text):
    """The Requirements of a file's text."""
    lines = (re.sub(r"( #.*| \\)$", "", line) for line in text.splitlines())
    return [Requirement(line.strip()) for line in lines if re.match(r"[\w.-]+==", line)]


def needed(installed, name):
    """The requirements of an installed distribution that hold here, with the extra of this name."""
    return [each for each in map(Requirement, installed.requires or []) if each.marker is None or each.marker.evaluate({"extra": name})]


def versions(folder, file):
    """Name -> (version, marker) of the requirements of a folder's file."""
    text = (ROOT / folder / file).read_text(encoding="utf-8")
    return {pin_requirements.normalized(each.name): (str(each.specifier), str(each.marker)) for each in requirements(text)}


@pytest.mark.parametrize(("folder", "with_needs"), pin_requirements.FOLDERS.items())
def test_the_versions_agree(folder, with_needs):
    named, pinned = versions(folder, "requirements.in"), versions(folder, "requirements.txt")
    assert len(named) > 15 and (len(pinned) > len(named)) == with_needs
    assert {name: pinned.get(name) for name in named} == named


def test_all_that_is_needed_is_pinned():
    """As far as it is installed here, which ./dev setup makes of the file."""
    pinned = pin_requirements.versions_of((ROOT / "requirements.txt").read_text(encoding="utf-8"))
    installed = {}
    for name, version in pinned.items():
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        if found.version == version:
            installed[name] = found
    assert len(installed) > 10
    missing = {each.name for name in installed for each in needed(installed[name], "") if pin_requirements.normalized(each.name) not in pinned}
    assert missing == set()


def test_a_package_that_some_environments_lack_gets_a_marker():
    found = {environment: {("alone", "1.0"): {"a" * 64}} for environment in EVERYWHERE}
    found["3.11", "x86_64"] |= {("tool", "2"): {"c" * 64}, ("both", "3"): {"d" * 64}}
    found["3.12", "x86_64"] |= {("both", "3"): {"e" * 64}}
    text = pin_requirements.pinned(found)
    assert f"\nalone==1.0 \\\n    --hash=sha256:{'a' * 64}\n" in text
    assert f'\nboth==3 ; platform_machine == "x86_64" \\\n    --hash=sha256:{"d" * 64} \\\n    --hash=sha256:{"e" * 64}\n' in text
    assert '\ntool==2 ; python_version == "3.11" and platform_machine == "x86_64" \\\n' in text
    with pytest.raises(SystemExit, match="no one marker"):
        pin_requirements.marker(set(EVERYWHERE[:3]))


@pytest.mark.parametrize(
    ("wheel", "environments"),
    [
        ("a-1-py3-none-any.whl", EVERYWHERE),
        ("a-1-py2.py3-none-manylinux_2_12_x86_64.manylinux2010_x86_64.whl", [each for each in EVERYWHERE if each[1] == "x86_64"]),
        ("a-1-cp312-cp312-manylinux_2_17_aarch64.whl", [("3.12", "aarch64")]),
        ("a-1-cp36-abi3-manylinux_2_17_aarch64.whl", [("3.11", "aarch64"), ("3.12", "aarch64")]),
        ("a-1-cp313-abi3-manylinux_2_17_x86_64.whl", []),
        ("a-1-cp311-cp311-musllinux_1_2_x86_64.whl", []),
        ("a-1-cp311-cp311-win_amd64.whl", []),
    ],
)
def test_wheels_are_told_from_each_other(wheel, environments):
    assert [each for each in EVERYWHERE if pin_requirements.is_for(wheel, *each)] == environments
