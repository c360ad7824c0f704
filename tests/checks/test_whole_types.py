"""tools/checks/public_types.py: which names are public, and what is said of one without a type."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "checks"))

import public_types  # noqa: E402


@pytest.fixture
def package(tmp_path):
    """A package whose public function and class are defined in two other modules, one of them behind an import of an import."""
    place = tmp_path / "python/scoremod"
    place.mkdir(parents=True)
    (place / "__init__.py").write_text('from scoremod.first import attend\nfrom scoremod.second import Mask\nimport os\n__all__ = ["attend", "Mask", "os"]\n')
    (place / "first.py").write_text("from scoremod.second import attend\n")
    (place / "second.py").write_text("def attend(): ...\nclass Mask: ...\nLIMIT = 3\n_own = 4\n")
    return tmp_path


def test_names_are_those_of_the_module_that_defines_them(package):
    assert public_types.public_names("scoremod", package) >= {"scoremod.second.attend", "scoremod.second.Mask"}
    assert public_types.public_names("scoremod.second", package) == {f"scoremod.second.{name}" for name in ("attend", "Mask", "LIMIT")}


def test_the_package_itself_has_public_names_in_each_module():
    found = {module: public_types.public_names(module) for module in public_types.MODULES}
    assert all(found.values()), [module for module, names in found.items() if not names]
    assert "scoremod.torch.api.flex_attention" in found["scoremod.torch"]


def symbol(name, *messages, known=False):
    return {"name": name, "isTypeKnown": known, "diagnostics": [{"message": message} for message in messages]}


def test_a_public_symbol_without_a_type_is_named():
    found = [
        symbol("scoremod.second.attend", 'Type annotation for parameter "q" is missing'),
        symbol("scoremod.second.Mask", known=True),
        symbol("scoremod.second.Mask.tiles", "Return type annotation is missing"),
        symbol("scoremod.second.Maskless", "not public"),
        symbol("scoremod.second.Module", public_types.OF_OTHERS[0]),
    ]
    names = {f"scoremod.second.{name}" for name in ("attend", "Mask", "Module")}
    public, complaints = public_types.without_types(names, found)
    assert [each["name"].rpartition(".")[2] for each in public] == ["attend", "Mask", "tiles", "Module"]
    assert complaints == [
        'scoremod.second.attend: Type annotation for parameter "q" is missing',
        "scoremod.second.Mask.tiles: Return type annotation is missing",
    ]
