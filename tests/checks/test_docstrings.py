"""The docstrings of public names: each has one, and a function of many parameters says them all, as they are called."""

import importlib
import inspect
import re
import sys
from pathlib import Path

import pytest
from test_python_types import public_functions

import scoremod

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "checks"))
import graph_stub  # noqa: E402

MODULES = ("scoremod", "scoremod.cache", "scoremod.jax", "scoremod.jax.context_parallel", "scoremod.jax.zoo", "scoremod.jax.graph")
# Every function of these with parameters has them in a list. PyTorch's are held to it by tests/torch/test_public_types.py.
LISTED = ("scoremod", "scoremod.jax", "scoremod.jax.context_parallel")
# Elsewhere, and in methods, so many parameters want a list. Fewer may stand in a sentence.
MANY = 6
# Graph's own docstring has these of all its methods.
OF_THE_GRAPH = ("compute_data_type", "name")


def documented(text):
    """The names in a docstring's section "Parameters"; None without one."""
    section = re.search(r"^Parameters\n-+\n(.*?)(?=\n\w[^\n]*\n-|\Z)", text, re.DOTALL | re.MULTILINE)
    if section is None:
        return None
    return [name.strip("* ") for line in section[1].splitlines() if line and not line.startswith(" ") for name in line.split(":")[0].split(",")]


def faults(text, parameters, most=MANY - 1):
    """The faults in the docstring of a function of these parameters. most: how many it may have without a list of them."""
    names, headings = documented(text), re.findall(r"^(\w+)\n-+$", text, re.MULTILINE)
    if not text:
        yield "no docstring"
    if names is None:
        if len(parameters) > most:
            yield "no section Parameters"
        return
    yield from (f"not documented: {name}" for name in parameters if name not in names)
    yield from (f"no parameter: {name}" for name in names if name not in parameters)
    yield from (f"no section {heading}" for heading in ("Returns", "Raises")[most > 0 :] if heading not in headings)


def texts(module):
    """(name, docstring, parameters) of a module's public functions; a constructor has its class's docstring."""
    for name, function in public_functions(module):
        owner = getattr(module, name.split(".")[0])
        text = inspect.getdoc(owner if name.endswith(".__init__") else function)
        parameters = [each for each in inspect.signature(function).parameters if each not in ("self", "cls")]
        if name.startswith("Graph."):
            parameters = [each for each in parameters if each not in OF_THE_GRAPH]
        is_record = name.endswith(".__init__") and (hasattr(owner, "__dataclass_fields__") or hasattr(owner, "_fields"))
        if not is_record and not name.startswith(("Tensor.set_",)):
            yield name, text or "", parameters


@pytest.mark.parametrize("module", MODULES)
def test_public_functions_say_what_they_take(module):
    found = {}
    for name, text, parameters in texts(importlib.import_module(module)):
        most = 0 if module in LISTED and "." not in name else MANY - 1
        found |= {name: wrong} if (wrong := list(faults(text, parameters, most))) else {}
    assert found == {}


def test_faults_are_found():
    text = "Adds.\n\nParameters\n----------\na, b : int\n    Numbers.\n**rest : int\n    More.\n\nReturns\n-------\nint\n"
    assert list(faults(text, ["a", "c", "rest"])) == ["not documented: c", "no parameter: b", "no section Raises"]
    assert list(faults("", ["a"])) == ["no docstring"]
    assert list(faults("Adds.", list("abcdef"))) == ["no section Parameters"]
    assert list(faults("Adds two numbers.", ["a", "b"])) == []
    assert list(faults("Adds two numbers.", ["a", "b"], 0)) == ["no section Parameters"]
    assert list(faults("Adds.\n\nParameters\n----------\na : int\n    A number.\n", ["a"], 0)) == ["no section Returns", "no section Raises"]


def test_the_stub_of_the_graph_has_its_operations():
    """Type checkers and editors see no method that is added while the module runs: python tools/checks/graph_stub.py --write"""
    assert (ROOT / "python/scoremod/jax/graph.pyi").read_text(encoding="utf-8") == graph_stub.stub()
    assert "def cmp_ge(self, input: _Given, comparison: _Given, " in graph_stub.stub()


def test_dir_shows_public_names_alone():
    shown = {name for name in dir(scoremod) if not name.startswith("__")}
    assert shown - {"jax", "torch"} == set(scoremod.__all__)
    assert "__version__" in dir(scoremod)
