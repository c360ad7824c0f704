"""Sizes come with calls: how often the compiler runs in loops whose sizes change from call to call.

XLA compiles a program for each size; what it asks scoremod for is compiled once."""

import os
import secrets
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scoremod
from jax import export
from scoremod import changing_constants
from scoremod.jax import CUSTOM_CALLS, flex_attention, zoo

SEED = int(os.environ.get("SCOREMOD_TEST_SEED") or secrets.randbelow(2**31))
H, D = 4, 16


@pytest.fixture
def random():
    print(f"SCOREMOD_TEST_SEED={SEED}")
    return np.random.default_rng(SEED)


@pytest.fixture
def unlike(random):
    """A number that no other test's programs have."""
    return float(np.float32(random.uniform(1, 2)))


@pytest.fixture
def cap(unlike):
    return lambda score, b, h, q_idx, kv_idx: unlike * jnp.tanh(score / unlike)


def compiles():
    return scoremod.cache.statistics()["compiled"]["problems"]


def compiles_of(loop):
    """How often the compiler runs while each of a loop's steps does."""
    before = compiles()
    for _ in loop:
        pass
    return compiles() - before


def array(random, *shape):
    return jnp.asarray(random.standard_normal(shape), jnp.float32)


def test_decoding_with_a_cache_compiles_twice(random, cap):
    """Once for init() and once for a token; the tokens are those of the whole sequence."""
    linen = pytest.importorskip("scoremod.jax.linen")
    tokens = 200
    module = linen.MultiHeadAttention(num_heads=H, score_mod=cap, mask_mod=zoo.causal(), decode=True)
    x, made = array(random, 1, tokens, H * D), []

    def decoding():
        variables = jax.jit(module.init)(jax.random.key(0), x)
        params, cache = variables["params"], variables["cache"]
        step = jax.jit(lambda cache, token: module.apply({"params": params, "cache": cache}, token, mutable=["cache"]))
        for number in range(tokens):
            o, changed = step(cache, x[:, number : number + 1])
            cache = changed["cache"]
            made.append(o)
            yield
        whole = linen.MultiHeadAttention(num_heads=H, score_mod=cap, mask_mod=zoo.causal()).apply({"params": params}, x)
        np.testing.assert_allclose(jnp.concatenate(made, axis=1), whole, atol=1e-5)

    loop = decoding()
    assert compiles_of(next(loop) for _ in range(tokens)) <= 2
    assert next(loop, None) is None  # which compares them


def growing(attend, random, lengths):
    """A jitted function for each length, which is another program to XLA."""
    for length in lengths:
        q, k = array(random, 1, 1, H, D), array(random, 1, length, 2, D)
        o = jax.jit(attend)(q, k)
        if length % 33 == 1:
            np.testing.assert_allclose(o, flex_attention(q, k, k, attend.score_mod, backend="xla"), atol=1e-5)
        yield


class Attend:
    def __init__(self, score_mod):
        self.score_mod = score_mod

    def __call__(self, q, k):
        return flex_attention(q, k, k, self.score_mod)


def test_growing_lengths_compile_once(random, cap):
    assert compiles_of(growing(Attend(cap), random, range(1, 101))) <= 2


def test_a_size_that_leaks_into_the_program_is_seen(random, unlike):
    """The negative control: a length that a function has as a number makes a program of its own."""

    def leaking():
        for length in range(1, 21):
            scaled = lambda score, b, h, q_idx, kv_idx, length=length: score * (unlike / length)  # noqa: E731
            yield from growing(Attend(scaled), random, [length])

    assert compiles_of(leaking()) >= 20


def test_mixed_batches_compile_once_for_each_kind_of_mask(random, unlike):
    """Continuous batching: batches of 1 to 32 with 1, 4 or 17 queries, whose keys have lengths."""

    def serving():
        for _ in range(100):
            batch, queries, keys = int(random.integers(1, 33)), int(random.choice([1, 4, 17])), int(random.integers(17, 65))
            q, k = array(random, batch, queries, H, D), array(random, batch, keys, 2, D)
            lengths = jnp.asarray(random.integers(1, keys + 1, batch), jnp.int32)
            bias = jnp.full((H,), unlike)
            flex_attention(q, k, k, lambda score, b, h, q_idx, kv_idx: score + unlike * bias[h], lengths=lengths)  # noqa: B023
            yield

    assert compiles_of(serving()) <= 3


def test_gradients_of_any_size_compile_twice(random, cap):
    """Forward and backward."""

    def train(length):
        q, k = array(random, 2, length, H, D), array(random, 2, length, 2, D)
        jax.jit(jax.grad(lambda q, k: flex_attention(q, k, k, cap, zoo.causal()).sum()))(q, k)

    assert compiles_of(map(train, range(1, 41))) <= 2


def test_ragged_batches_compile_once(random, cap):
    """Fifty batches of four sequences each, in one array of tokens; asked for and compiled is one problem."""

    def batch(_):
        lengths = random.integers(1, 40, 4)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        q, k = array(random, int(lengths.sum()), H, D), array(random, int(lengths.sum()), 2, D)
        flex_attention(q, k, k, cap, zoo.causal(), q_offsets=offsets, layout="THD")

    assert compiles_of(map(batch, range(50))) <= 2


def test_growing_pages_compile_once(random, cap):
    def decode(width):
        blocks = 2 * width
        q, pool = array(random, 2, 1, H, D), array(random, blocks, 4, 2, D)
        table = np.arange(blocks, dtype=np.int32).reshape(2, width)
        lengths = np.full(2, 4 * width - 1, np.int32)
        flex_attention(q, pool, pool, cap, page_table=table, lengths=lengths)

    assert compiles_of(map(decode, range(1, 41))) <= 2


def test_an_exported_program_of_any_size_compiles_once(random, cap):
    known = [export.DisabledSafetyCheck.custom_call(target) for target in CUSTOM_CALLS]
    q = jax.ShapeDtypeStruct(export.symbolic_shape(f"b, s, {H}, {D}"), jnp.float32)
    program = export.export(jax.jit(lambda q: flex_attention(q, q, q, cap, zoo.causal())), disabled_checks=known)(q)

    def calls():
        for batch, length in zip(range(1, 21), range(3, 63, 3)):
            program.call(array(random, batch, length, H, D))
            yield

    assert compiles_of(calls()) <= 2


def test_a_python_number_that_changes_is_told_of_and_an_array_of_one_number_compiles_nothing(random, unlike, monkeypatch):
    monkeypatch.setattr(changing_constants, "_seen", {})
    q, values = array(random, 1, 9, 2, 8), [unlike + 0.01 * number for number in range(changing_constants.MOST_PROGRAMS + 4)]

    def attend(cap):
        return flex_attention(q, q, q, lambda score, b, h, q_idx, kv_idx: cap * jnp.tanh(score / cap))

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert compiles_of(attend(value) for value in values) == len(values)
    (warning,) = told
    assert "jnp.asarray(x)" in str(warning.message) and warning.filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compiles_of(attend(jnp.asarray(value)) for value in values) == 1
