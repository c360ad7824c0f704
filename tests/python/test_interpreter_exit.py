"""An interpreter ends with 0 after and while threads call attention, of NumPy and of JAX."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import interpreter_exit

NUMPY = """
import numpy as np, scoremod
q = np.ones((1, 64, 2, 16), np.float32)
attention = scoremod.Attention({"batch": 1, "heads_q": 2, "seq_q": 64, "dim_qk": 16})
def call():
    attention.forward(q, q, q)
    scoremod.attention(q, q, q)
"""
JAX = """
import jax, jax.numpy as jnp, scoremod.jax
q = jnp.ones((1, 64, 2, 16))
gradient = jax.jit(jax.grad(lambda q: scoremod.jax.flex_attention(q, q, q, lambda score, b, h, i, j: jnp.tanh(score)).sum()))
def call():
    gradient(q).block_until_ready()
    scoremod.jax.flex_attention(q, q, q).block_until_ready()
"""


@pytest.mark.parametrize("end", interpreter_exit.ENDS)
@pytest.mark.parametrize("setup", [pytest.param(NUMPY, id="numpy"), pytest.param(JAX, id="jax")])
def test_it_ends_with_0(setup, end):
    if setup is JAX:
        pytest.importorskip("jax")
    interpreter_exit.check(setup, end)


@pytest.mark.parametrize("end", interpreter_exit.ENDS)
def test_a_wrong_end_is_found(end):
    with pytest.raises(AssertionError, match="-6"):
        interpreter_exit.check("import atexit, os\natexit.register(os.abort)\ndef call(): pass\n", end)
