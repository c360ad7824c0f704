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
import packed_documents
import paged_decoding
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
    # The text is that of the pages of docs/, which change: some begin with words that are easier to learn than others'.
    assert losses[-1] < losses[0] - 0.25
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
    truth = dense.in_float64(functools.partial(gemma_block.output_and_gradients, reference, shape), gemma_block.init(shape), *gemma_block.random_inputs(shape))
    plain = block_results(reference, shape, jnp.float32)
    dense.assert_close(block_results(capped, shape, jnp.float32), plain, truth)
    for wrong, wrong_shape in ((uncapped, shape), (capped, shape._replace(window=shape.window + 1))):
        with pytest.raises(AssertionError):
            dense.assert_close(block_results(wrong, wrong_shape, jnp.float32), plain, truth)


PACKED_SHAPE = packed_documents.Shape(layers=1, tokens=150, documents=4)
DOCUMENTS = packed_documents.read_documents()


def wrong_gradients(attention, rate=0.25):
    """Names of parameters whose gradients are further from the dense ones than their tolerance."""
    # Paragraphs of docs/, which change: one of them may fill a batch, whose offsets no fault would move.
    batch = next(each for each in packed_documents.batches(DOCUMENTS, PACKED_SHAPE, 100) if each[-1][1] < each[-1][-1])
    params = packed_documents.init(PACKED_SHAPE, DOCUMENTS.alphabet)
    errors = packed_documents.gradient_errors(attention, "float32", rate, params, jax.random.key(2), *batch)
    assert len(errors) == 10
    return [name for name, error, tolerance in errors if not error <= tolerance]


def test_packed_documents_have_the_dense_gradients():
    assert wrong_gradients(packed_documents.packed_attention) == []


def test_wrong_gradients_of_packed_documents_are_seen():
    right = packed_documents.packed_attention
    no_gradient = jax.lax.stop_gradient
    faults = {
        "offsets that begin one later": lambda q, k, v, offsets, *rest: right(q, k, v, jnp.minimum(offsets.at[1:-1].add(1), offsets[-1]), *rest),
        "a cap that does not learn": lambda q, k, v, offsets, cap, *rest: right(q, k, v, offsets, no_gradient(cap), *rest),
        "a sink that does not learn": lambda q, k, v, offsets, cap, sink, *rest: right(q, k, v, offsets, cap, no_gradient(sink), *rest),
        "another key": lambda *given: right(*given[:-2], jax.random.fold_in(given[-2], 1), given[-1]),
        "no dropout": lambda *given: right(*given[:-1], 0.0),
    }
    for name, fault in faults.items():
        assert wrong_gradients(fault), name


def test_packed_documents_learn():
    losses, params = packed_documents.train(packed_documents.packed_attention, DOCUMENTS, PACKED_SHAPE, 40, rate=0.1)
    assert losses[-1] < losses[0] - 0.3
    assert (params["layers"][0]["sink"] != packed_documents.init(PACKED_SHAPE, DOCUMENTS.alphabet)["layers"][0]["sink"]).all()


def test_a_paged_cache_decodes_the_dense_tokens():
    shape = paged_decoding.Shape(longest=64)
    params, given = paged_decoding.init(shape), paged_decoding.prompts(shape)
    dense_tokens = paged_decoding.decode_densely(shape, jnp.float32, params, given, 30)
    np.testing.assert_array_equal(paged_decoding.decode_paged(shape, jnp.float32, params, given, 30), dense_tokens)
    assert len(np.unique(dense_tokens)) > 8
    wider = shape._replace(window=shape.window + 1)
    assert (paged_decoding.decode_paged(wider, jnp.float32, params, given, 30) != dense_tokens).any()


@pytest.mark.parametrize("wrong", ["pages", "lengths"])
def test_a_wrong_cache_is_seen(monkeypatch, wrong):
    """Blocks of the next sequence, and a key too few."""
    shape = paged_decoding.Shape(longest=64)
    params, given = paged_decoding.init(shape), paged_decoding.prompts(shape)
    right = flex_attention

    def faulty(q, k, v, *, page_table, lengths, **rest):
        if wrong == "pages":
            return right(q, jnp.nan_to_num(k), jnp.nan_to_num(v), page_table=jnp.roll(page_table, 1, axis=0), lengths=lengths, **rest)
        return right(q, k, v, page_table=page_table, lengths=lengths - 1, **rest)

    monkeypatch.setattr(paged_decoding, "flex_attention", faulty)
    found = paged_decoding.decode_paged(shape, jnp.float32, params, given, 20)
    assert (found != paged_decoding.decode_densely(shape, jnp.float32, params, given, 20)).any()
