"""The public functions of the NumPy and JAX bindings have types, which basedpyright finds right (pyproject.toml)."""

import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = ("scoremod", "scoremod.cache", "scoremod.jax", "scoremod.jax.context_parallel", "scoremod.jax.zoo")


def test_types_are_right():
    done = subprocess.run([sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


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
