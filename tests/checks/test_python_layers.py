"""Each framework is imported below its own folder of the Python package alone, so that one serves where another isn't installed."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "python" / "scoremod"

# The folder that may import them -> top-level modules.
FRAMEWORKS = {"jax": {"jax", "jaxlib", "flax"}, "torch": {"torch", "transformers", "functorch"}}


def imported(text):
    """(line, module) for every import of a file, wherever it stands in it."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.module or "." * node.level
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def violations(package):
    """The violations in the package, each as "place:line: text"."""
    for file in sorted(package.rglob("*.py")):
        folder = file.relative_to(package).parts[0]
        for line, module in imported(file.read_text()):
            parts = module.split(".")
            for framework, names in FRAMEWORKS.items():
                own = len(parts) > 1 and parts[:2] == ["scoremod", framework]
                if folder != framework and (parts[0] in names or own):
                    yield f"{file.relative_to(package)}:{line}: imports {module}; only what lies in {framework}/ may"


def test_a_framework_is_imported_in_its_folder_alone():
    assert list(violations(PACKAGE)) == []


@pytest.mark.parametrize(
    ("file", "text", "found"),
    [
        ("sizes.py", "import jax.numpy as jnp", "imports jax.numpy"),
        ("sizes.py", "def late():\n    from jax import lax", "sizes.py:2: imports jax"),
        ("program.py", "from scoremod import jax", "imports scoremod.jax"),
        ("jax/trace.py", "from scoremod.torch.trace import trace", "imports scoremod.torch.trace"),
        ("torch/trace.py", "import jax", "imports jax"),
        ("attention.py", "import torch", "only what lies in torch/ may"),
    ],
)
def test_a_violation_is_found(tmp_path, file, text, found):
    (tmp_path / "jax").mkdir()
    (tmp_path / "torch").mkdir()
    (tmp_path / file).write_text(text)
    assert any(found in violation for violation in violations(tmp_path))


@pytest.mark.parametrize(("file", "text"), [("jax/trace.py", "import jax\nimport scoremod.program"), ("torch/trace.py", "from torch import fx")])
def test_what_may_be_imported_is_not_refused(tmp_path, file, text):
    (tmp_path / "jax").mkdir()
    (tmp_path / "torch").mkdir()
    (tmp_path / file).write_text(text)
    assert list(violations(tmp_path)) == []
