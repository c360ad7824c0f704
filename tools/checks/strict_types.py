#!/usr/bin/env python3
"""Checks the modules of the public interface by basedpyright's strict rules. Run it by a Python that has basedpyright and JAX.

usage: strict_types.py [PYTHON]

PYTHON is one with PyTorch, as torch_types.py takes it. The modules are those that define a name which public_types.py finds public. Of the functions in
them public ones must have types; the parameters of others are checked as those of all other modules are, where they have types (basic). The exit code is 1
where a rule is broken.
"""

import ast
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import public_types
import torch_types

OFF = {
    # NumPy's arrays in jax.typing.ArrayLike have no type of element, half of torch has no types, and functions within the package may have none.
    "reportUnknownArgumentType": False,
    "reportUnknownLambdaType": False,
    "reportUnknownMemberType": False,
    "reportUnknownParameterType": False,
    "reportUnknownVariableType": False,
    # Arguments are looked at when a program runs, too, for callers that use no type checker.
    "reportUnnecessaryIsInstance": False,
}
UNTYPED = "reportMissingParameterType"


def modules(names, root):
    """Each module of the public interface below `root` -> its file. names: the full names of what is public."""
    named = {*public_types.MODULES, *(name.rpartition(".")[0] for name in names)}
    return {module: path for module in sorted(named) if (path := public_types.path_of(module, root)).exists()}


def public_lines(module, path, names):
    """The lines of a module on which the parameters of its public functions and methods are."""

    def lines(node, prefix):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                yield from lines(child, f"{prefix}.{child.name}")
            elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) and is_public(f"{prefix}.{child.name}", names):
                yield from (each.lineno for each in ast.walk(child.args) if isinstance(each, ast.arg))

    return set(lines(ast.parse(path.read_text(encoding="utf-8")), module))


def is_public(name, names):
    """Whether a function is one of the public names, or a method of a public class that users call."""
    own = name.rpartition(".")[2]
    return name in names or (name.rpartition(".")[0] in names and (not own.startswith("_") or own.endswith("__")))


def config(paths, packages, root):
    settings = torch_types.config(packages, root)
    return {**settings, "include": [str(path) for path in paths], "typeCheckingMode": "strict", **OFF}


def check(packages, root=public_types.ROOT):
    """(the number of modules, complaints about them, as path:line: message). packages: the folder of PyTorch's packages."""
    names = set().union(*(public_types.public_names(module, root) for module in public_types.MODULES if public_types.path_of(module, root).exists()))
    checked = modules(names, root)
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "pyrightconfig.json"
        project.write_text(json.dumps(config(checked.values(), packages, root)), encoding="utf-8")
        command = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "--project", str(project), "--outputjson"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    public = {str(path): public_lines(module, path, names) for module, path in checked.items()}
    complaints = []
    for each in json.loads(done.stdout)["generalDiagnostics"]:
        line, rule = each["range"]["start"]["line"] + 1, each.get("rule", "")
        if rule != UNTYPED or line in public[each["file"]]:
            complaints.append(f"{Path(each['file']).relative_to(root)}:{line}: {each['message']} ({rule})".replace("\n", " "))
    return len(checked), complaints


def main():
    if len(sys.argv) > 2:
        sys.exit(__doc__)
    count, complaints = check(torch_types.packages_of(torch_types.torch_python(sys.argv[1:])))
    print("".join(f"{each}\n" for each in complaints), end="")
    print(f"{count} public modules, {len(complaints)} complaints by strict rules")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
