#!/usr/bin/env python3
"""Writes python/scoremod/jax/graph.pyi: the operations of the graph, which graph.py adds from tables, as type checkers see them.

usage: PYTHONPATH=python tools/checks/graph_stub.py [--write]     without --write it prints the file
"""

import inspect
import sys
from pathlib import Path

FILE = Path(__file__).resolve().parents[2] / "python" / "scoremod" / "jax" / "graph.pyi"
HEAD = '''"""Written by tools/checks/graph_stub.py from graph.py."""

from typing import Any

from jax.typing import ArrayLike

class Tensor:
    value: Any
    def __init__(self, value: ArrayLike) -> None: ...
'''
LONGEST_LINE = 160
# The types of options; all others are numbers.
TYPES = {"compute_data_type": "Any", "name": "str | None", "axis": "int"}


def method(name, function):
    """The line of one operation."""
    parameters = ["self"]
    for each in list(inspect.signature(function).parameters.values()):
        if each.name == "self":
            continue
        required = each.default is inspect.Parameter.empty
        kind = TYPES.get(each.name, "_Given" if required else "float | None")
        parameters.append(f"{each.name}: {kind}" + ("" if required else " = ..."))
    line = f"    def {name}({', '.join(parameters)}) -> Tensor: ...\n"
    if len(line) > 1 + LONGEST_LINE:  # as ruff breaks it
        inner = f"        {', '.join(parameters)}"
        inner = inner if len(inner) <= LONGEST_LINE else "".join(f"        {each},\n" for each in parameters).rstrip("\n")
        line = f"    def {name}(\n{inner}\n    ) -> Tensor: ...\n"
    return line


def public(owner):
    return [(name, each) for name, each in inspect.getmembers(owner, inspect.isfunction) if not name.startswith("_")]


def stub():
    """The text of the file."""
    from scoremod.jax.graph import Graph, Tensor

    setters = "".join(f"    def {name}(self, *_: Any, **__: Any) -> Tensor: ...\n" for name, _ in public(Tensor))
    own = "".join(method(name, function) for name, function in public(Graph))
    return f"{HEAD}{setters}\n_Given = Tensor | float\n\nclass Graph:\n    def __init__(self, indices: Any) -> None: ...\n{own}"


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        FILE.write_text(stub(), encoding="utf-8")
    else:
        print(stub(), end="")
