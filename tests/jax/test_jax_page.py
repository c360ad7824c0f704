"""The JAX of the pages runs as it stands there."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from page_python import pages_for, parts_of_pages, run_page


@pytest.mark.parametrize("page", pages_for("jax"))
def test_a_page_runs(page):
    if any("import flatbuffers" in block or "serialize()" in block for block in parts_of_pages()[page]["jax"]):
        pytest.importorskip("flatbuffers")
    names = run_page(page, "jax")
    made = [value for value in names.values() if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jnp.floating)]
    assert made and all(np.isfinite(value).all() for value in made)


def test_the_page_of_jax_has_gradients():
    assert all(np.abs(each).max() > 0 for each in run_page("docs/guide/jax.md", "jax")["gradients"])


def test_the_loss_of_the_readme_has_gradients():
    names = run_page("README.md", "jax")
    gradients = jax.grad(names["loss"], argnums=(0, 1))(jnp.ones(8), 20.0)
    assert all((np.abs(x) > 0).all() for x in gradients)
