"""The public functions of the bindings have types, which basedpyright finds right: pyproject.toml, and tools/checks/torch_types.py for PyTorch's."""

import importlib
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "checks"))
import torch_types  # noqa: E402

MODULES = ("scoremod", "scoremod.cache", "scoremod.jax", "scoremod.jax.context_parallel", "scoremod.jax.zoo")


def test_types_are_right():
    done = subprocess.run([sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_file_is_checked():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["basedpyright"]
    assert settings["typeCheckingMode"] == torch_types.config("packages")["typeCheckingMode"] == "basic"
    checked = {path for each in (*settings["include"], *torch_types.INCLUDED) for path in (ROOT.glob(each) if "*" in each else (ROOT / each).rglob("*.py"))}
    files = set((ROOT / "python/scoremod").rglob("*.py"))
    assert len(files) > 100 and files <= checked


def test_the_check_of_pytorchs_binding_finds_a_wrong_type(tmp_path):
    """Its binding and PyTorch are replaced by files of a few lines."""
    packages, binding = tmp_path / "packages", tmp_path / "python/scoremod/torch"
    packages.mkdir()
    (packages / "torch.py").write_text("def ones() -> int: ...\n")
    binding.mkdir(parents=True)
    (binding / "api.py").write_text("import torch\n\nfound: int = torch.ones()\n")
    assert torch_types.check(packages, tmp_path)[0] == 0
    (binding / "api.py").write_text("import torch\n\nfound: str = torch.ones()\n")
    status, said = torch_types.check(packages, tmp_path)
    assert status == 1 and "reportAssignmentType" in said


def test_what_is_ignored_has_a_rule():
    """A comment that turns the check off turns off no more than one rule in one line."""
    texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / "python/scoremod").rglob("*.py")}
    blanket = re.compile(r"# (type: ignore|pyright: (?!ignore\[report\w+\]))")
    assert [path.name for path, text in texts.items() if blanket.search(text)] == []
    assert blanket.search("# pyright: basic") and blanket.search("# pyright: ignore") and not blanket.search("# pyright: ignore[reportCallIssue]")


def public_functions(module):
    """(name, function) of a module's own public functions, and of its public classes' methods."""
    for name, value in inspect.getmembers(module):
        is_public = name in module.__all__ if hasattr(module, "__all__") else getattr(value, "__module__", "") == module.__name__
        if name.startswith("_") or not is_public:
            continue
        if inspect.isfunction(value):
            yield name, value
        elif inspect.isclass(value):
            for method, each in vars(value).items():
                each = getattr(each, "fget", None) or getattr(each, "__func__", each)
                if inspect.isfunction(each) and (method == "__init__" or not method.startswith("_")):
                    yield f"{name}.{method}", each


def untyped(function):
    """The parameters of a function without a type, but for self and cls; "return" without that of its result."""
    signature = inspect.signature(function)
    found = [name for name, each in signature.parameters.items() if each.annotation is inspect.Parameter.empty and name not in ("self", "cls")]
    return found + ["return"] * (signature.return_annotation is inspect.Signature.empty)


@pytest.mark.parametrize("name", MODULES)
def test_public_functions_have_types(name):
    functions = dict(public_functions(importlib.import_module(name)))
    assert len(functions) > 2
    assert {each: missing for each, function in functions.items() if (missing := untyped(function))} == {}


def test_a_missing_type_is_found():
    def function(x: int, y, *, z: int = 0):
        return x + y + z

    assert untyped(function) == ["y", "return"]


def test_the_package_says_that_it_has_types():
    assert (ROOT / "python/scoremod/py.typed").exists()
