"""The examples, small: as the dense ones, and not so when the score function is left out."""

import functools
import sys
from pathlib import Path

import dense_reference as dense
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scoremod.jax import flex_attention

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "jax"))

import char_model
import gemma_block
from dense_attention import dense_attention

STEPS = 12
TEXT = char_model.read_text()
TEXT_SHAPE = char_model.Shape(layers=1, seq=64, batch=4)


def without_score_mod(q, k, v, score_mod, mask_mod):
    return flex_attention(q, k, v, None, mask_mod)


def with_gradient_of_no_score_mod(q, k, v, score_mod, mask_mod):
    """The right output; the arrays of the score function don't learn."""
    right, wrong = flex_attention(q, k, v, score_mod, mask_mod), flex_attention(q, k, v, None, mask_mod)
    return wrong + jax.lax.stop_gradient(right - wrong)


@functools.cache
def trained(attention):
    """(losses, learned arrays) after a few steps."""
    losses, params, _ = char_model.train(attention, TEXT, TEXT_SHAPE, STEPS)
    return np.asarray(losses, np.float32), [(layer["slopes"], layer["cap"]) for layer in params["layers"]]


@functools.cache
def truly_trained():
    # Drawn outside: with float64 on, JAX draws other numbers.
    params = char_model.init(TEXT_SHAPE, TEXT.alphabet)
    with jax.enable_x64(True):
        params = jax.tree.map(lambda x: jnp.asarray(np.asarray(x), jnp.float64), params)
        losses, params, _ = char_model.train(dense_attention, TEXT, TEXT_SHAPE, STEPS, params=params)
        return np.asarray(losses), [(np.asarray(layer["slopes"]), np.asarray(layer["cap"])) for layer in params["layers"]]


def test_the_character_model_learns_as_the_dense_one():
    losses, learned = trained(flex_attention)
    assert losses[-1] < losses[0] - 0.5
    for slopes, cap in learned:
        assert (slopes != char_model.zoo.alibi_slopes(TEXT_SHAPE.heads)).all() and cap != 20
    dense.assert_close((losses, learned), trained(dense_attention), truly_trained())


@pytest.mark.parametrize("wrong", [without_score_mod, with_gradient_of_no_score_mod])
def test_a_wrong_character_model_is_seen(wrong):
    with pytest.raises(AssertionError):
        dense.assert_close(trained(wrong), trained(dense_attention), truly_trained())


# Head dim 256 is the model's; the rest is small. The window ends within the sequence.
BLOCK_SHAPE = gemma_block.Shape(features=32, heads=4, kv_heads=2, hidden=64, window=9, seq=40)


def block_results(attention, shape, dtype):
    weights, given = gemma_block.init(shape, dtype), gemma_block.random_inputs(shape, dtype)
    return jax.jit(functools.partial(gemma_block.output_and_gradients, attention, shape))(weights, *given)


def block_truth(shape, dtype):
    weights, given = gemma_block.init(shape, dtype), gemma_block.random_inputs(shape, dtype)
    return dense.in_float64(functools.partial(gemma_block.output_and_gradients, dense_attention, shape), weights, *given)


def test_the_gemma_block_is_the_dense_one():
    """In bfloat16; the next test begins with float32."""
    dtype = jnp.bfloat16
    results = [block_results(attention, BLOCK_SHAPE, dtype) for attention in (flex_attention, dense_attention)]
    dense.assert_close(*results, block_truth(BLOCK_SHAPE, dtype))


def test_a_wrong_gemma_block_is_seen():
    """A cap that is left out, and the window of the next layer."""
    uncapped = lambda q, k, v, score_mod, mask_mod: flex_attention(4 * q, k, v, None, mask_mod)  # noqa: E731
    capped = lambda q, k, v, score_mod, mask_mod: flex_attention(4 * q, k, v, score_mod, mask_mod)  # noqa: E731
    reference = lambda q, k, v, score_mod, mask_mod: dense_attention(4 * q, k, v, score_mod, mask_mod)  # noqa: E731
    shape = BLOCK_SHAPE
    truth = dense.in_float64(
        functools.partial(gemma_block.output_and_gradients, reference, shape), gemma_block.init(shape), *gemma_block.random_inputs(shape)
    )
    plain = block_results(reference, shape, jnp.float32)
    dense.assert_close(block_results(capped, shape, jnp.float32), plain, truth)
    for wrong, wrong_shape in ((uncapped, shape), (capped, shape._replace(window=shape.window + 1))):
        with pytest.raises(AssertionError):
            dense.assert_close(block_results(wrong, wrong_shape, jnp.float32), plain, truth)
