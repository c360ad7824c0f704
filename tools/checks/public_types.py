#!/usr/bin/env python3
"""Checks that everything public has a type that a type checker knows: basedpyright --verifytypes. Run it by a Python that has basedpyright and JAX.

usage: public_types.py [PYTHON]

PYTHON is one with PyTorch, as torch_types.py takes it. Public is what docs/reference/python_api.md names: the names of MODULES, and the members of these
classes. The exit code is 1 where a parameter, a result or a variable of them lacks a type.
"""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import torch_types

ROOT = Path(__file__).resolve().parents[2]
MODULES = (
    *("scoremod", "scoremod.cache"),
    *("scoremod.jax", "scoremod.jax.context_parallel", "scoremod.jax.graph", "scoremod.jax.linen", "scoremod.jax.nnx", "scoremod.jax.transformer_engine"),
    *("scoremod.jax.transformer_layer", "scoremod.jax.zoo"),
    *("scoremod.torch", "scoremod.torch.flash_attn", "scoremod.torch.transformers"),
)
# Flax's classes: --verifytypes doesn't look into other packages for the bases of a class.
OF_OTHERS = ("Type of base class unknown", "Type of metaclass unknown")


def path_of(module, root):
    path = root / "python" / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def read(module, root):
    """(a module's assignments: name -> expression, the names that it defines, what it imports: name -> (module, name))."""
    body = ast.parse(path_of(module, root).read_text(encoding="utf-8")).body
    assigned = {node.targets[0].id: node.value for node in body if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)}
    defined = {node.name for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))} | set(assigned)
    imported = {name.asname or name.name: (node.module, name.name) for node in body if isinstance(node, ast.ImportFrom) for name in node.names}
    return assigned, defined, imported


def defined_in(module, name, root):
    """The full name of what a module of the package calls `name`, where it is defined."""
    while module.startswith("scoremod") and path_of(module, root).exists():
        origin = read(module, root)[2].get(name)
        if origin in (None, (module, name)):  # its own, or a module of this package
            break
        module, name = origin
    return f"{module}.{name}"


def public_names(module, root=ROOT):
    """The full names, where they are defined, of what a module has for users: what __all__ lists, or what it defines itself."""
    assigned, defined, _ = read(module, root)
    listed = ast.literal_eval(assigned["__all__"]) if "__all__" in assigned else [name for name in defined if not name.startswith("_")]
    found = {defined_in(module, name, root) for name in listed}
    return {name for name in found if name.startswith("scoremod.") and name not in MODULES}


def symbols(python):
    """basedpyright's answer about each symbol of the package. python: one with PyTorch."""
    paths = [str(ROOT / "python"), torch_types.packages_of(python)]
    command = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "--verifytypes", "scoremod", "--ignoreexternal", "--outputjson"]
    # It looks the packages up where its Python does.
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)})
    return json.loads(done.stdout)["typeCompleteness"]["symbols"]


def without_types(names, found):
    """(the public symbols among those found, complaints about them). A class is as its members are, which are symbols too."""
    public = [each for each in found if any(f"{each['name']}.".startswith(f"{name}.") for name in names)]
    complaints = []
    for each in public:
        said = [diagnostic["message"].replace("\n", " ") for diagnostic in each["diagnostics"]]
        if not each["isTypeKnown"]:
            complaints += [f"{each['name']}: {message}" for message in said if message not in OF_OTHERS and "docstring" not in message]
    return public, complaints


def main():
    if len(sys.argv) > 2:
        sys.exit(__doc__)
    names = set().union(*map(public_names, MODULES))
    found = symbols(torch_types.torch_python(sys.argv[1:]))
    public, complaints = without_types(names, found)
    missing = sorted(name for name in names if name not in {each["name"] for each in found})
    for complaint in [*complaints, *(f"{name}: basedpyright doesn't know it" for name in missing)]:
        print(complaint)
    untyped = {complaint.partition(":")[0] for complaint in complaints}
    print(f"{len(public) - len(untyped)} of {len(public)} public symbols have types")
    return 1 if complaints or missing else 0


if __name__ == "__main__":
    sys.exit(main())
