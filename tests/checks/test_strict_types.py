"""tools/checks/strict_types.py: which modules and functions strict rules are for, and what they find."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "checks"))

import public_types  # noqa: E402
import strict_types  # noqa: E402

TYPED = """
class Mask:
    def __init__(self, seq: int) -> None:
        self.seq = seq

    def tiles(self, size: int) -> list[int]:
        return _tiles(self.seq, size)

    def _own(self, x):
        return x


def attend(q: int) -> int:
    return q


def _tiles(seq, size):
    return [seq, size]
"""


@pytest.fixture
def check(tmp_path):
    """The complaints about a package whose public names, attend and Mask, this text defines. Beside it is a module without public names."""
    place = tmp_path / "python/scoremod"
    place.mkdir(parents=True)
    (place / "__init__.py").write_text('from scoremod.first import Mask, attend\n\n__all__ = ["Mask", "attend"]\n')
    (place / "inside.py").write_text("import os\n\n\ndef run(x):\n    return x\n")

    def run(text):
        (place / "first.py").write_text(text)
        count, complaints = strict_types.check(tmp_path, tmp_path)
        assert count == 2
        return complaints

    return run


def test_private_functions_and_other_modules_may_have_no_types(check):
    assert check(TYPED) == []


def test_public_functions_without_types_are_seen(check):
    text = TYPED.replace("def attend(q: int)", "def attend(\n    q: int,\n    *more,\n)")
    text = text.replace("def tiles(self, size: int)", "def tiles(self, size)").replace("def __init__(self, seq: int)", "def __init__(self, *, seq)")
    said = 'python/scoremod/first.py:{}: Type annotation is missing for parameter "{}" (reportMissingParameterType)'
    lines = text.splitlines()
    found = {
        name: next(number for number, line in enumerate(lines, 1) if place in line)
        for name, place in (("seq", "*, seq"), ("size", "tiles("), ("more", "*more"))
    }
    assert sorted(check(text)) == sorted(said.format(line, name) for name, line in found.items())


def test_other_strict_rules_hold_in_the_whole_module(check):
    complaints = check("import os\n" + TYPED.replace("def _own(self, x):", "def _own(self, x: list):"))
    assert [each.rpartition(" ")[2] for each in complaints] == ["(reportUnusedImport)", "(reportMissingTypeArgument)"]


def test_the_modules_are_those_that_define_what_is_public():
    names = set().union(*map(public_types.public_names, public_types.MODULES))
    modules = strict_types.modules(names, ROOT)
    assert {*public_types.MODULES, "scoremod.attention", "scoremod.torch.api", "scoremod.jax.api"} <= set(modules)
    assert "scoremod.library" not in modules and all(path.exists() for path in modules.values())
