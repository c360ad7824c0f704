"""The Python of docs/guide/jax.md and of README.md runs as it stands there: each piece by itself, or after the page's first one."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


def blocks_of(page):
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


def run(block, page, names):
    exec(compile(block, page, "exec"), names)  # noqa: S102 (it is our own page)
    return names


FIRST, *LATER = blocks_of("docs/guide/jax.md")


def test_the_first_piece_runs():
    assert np.isfinite(run(FIRST, "docs/guide/jax.md", {})["o"]).all()


@pytest.mark.parametrize("number", range(len(LATER)))
def test_each_later_piece_goes_on_from_the_first(number):
    if "serialize()" in LATER[number]:
        pytest.importorskip("flatbuffers")
    before = run(FIRST, "docs/guide/jax.md", {})
    names = run(LATER[number], "docs/guide/jax.md", dict(before))
    made = [value for name, value in names.items() if name not in before and isinstance(value, jax.Array)]
    assert all(np.isfinite(value).all() for value in made)
    if "context_parallel_attention" in LATER[number]:
        assert names["attention"](names["q"], names["k"], names["v"]).shape == names["q"].shape


def test_the_pieces_of_the_readme_run():
    (block,) = [each for each in blocks_of("README.md") if "scoremod.jax" in each]
    names = run(block, "README.md", {})
    gradients = names["jax"].grad(names["loss"], argnums=(0, 1))(jnp.ones(8), 20.0)
    assert all((np.abs(x) > 0).all() for x in gradients)
