"""scoremod.jax.draw: the picture of what the functions were traced to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scoremod
from scoremod import jax as scoremod_jax

pytest.importorskip("matplotlib")
Q = jax.ShapeDtypeStruct((1, 24, 2, 8), jnp.bfloat16)


def image(figure):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())


def test_it_draws_what_the_problem_says():
    slopes = jnp.asarray([0.25, -0.5], jnp.float32)

    def alibi(s, b, h, q_idx, kv_idx):
        return 2 * s + slopes[h] * (kv_idx - q_idx)

    causal = lambda b, h, q_idx, kv_idx: kv_idx <= q_idx  # noqa: E731
    found = image(scoremod_jax.draw(Q, Q, Q, alibi, causal, head=1, tile=8))
    name = "slopes"  # as alibi calls it
    program = f"operand {name}: f32 [h]\nvalue = score * 2.0 + {name} * f32(kv_idx - q_idx)\nkeep = kv_idx <= q_idx"
    problem = dict(batch=1, heads_q=2, seq_q=24, dim_qk=8, dtype="bf16", program=program)
    operands = [{"name": name, "dtype": "f32", "shape": [2]}]
    expected = image(scoremod.draw({**problem, "operands": operands}, {name: np.asarray(slopes)}, head=1, tile=8))
    np.testing.assert_array_equal(found, expected)
    assert (found != image(scoremod_jax.draw(Q, Q, Q, alibi, causal, head=0, tile=8))).any()
