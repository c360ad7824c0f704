"""JAX's flex_attention answers wrong options as the other front ends do."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from scoremod.jax import flex_attention
from scoremod.jax.context_parallel import context_parallel_attention

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from wrong_options import MISTAKES_OF_FLOAT8, MISTAKES_OF_SEQUENCES, mistakes

X = jnp.ones((2, 4, 2, 8), jnp.float32)
NAMES = {"dropout": "dropout_rate"}
OPTIONS = [each for each in mistakes() if each.option != "offsets"]  # which JAX has not


@pytest.mark.parametrize("mistake", OPTIONS, ids=str)
def test_of_a_call(mistake):
    mistake.is_raised_by(lambda **option: flex_attention(X, X, X, dropout_key=jax.random.key(0), **option), NAMES)


@pytest.mark.parametrize("mistake", mistakes("scale", "q_start", "return_lse"), ids=str)
def test_of_a_call_on_xla(mistake):
    mistake.is_raised_by(lambda **option: flex_attention(X, X, X, backend="xla", **option), NAMES)


@pytest.mark.parametrize("mistake", MISTAKES_OF_SEQUENCES, ids=str)
def test_of_sequences(mistake):
    mistake.is_raised_by(lambda **option: flex_attention(X[0], X[0], X[0], layout="THD", q_offsets=jnp.array([0, 4]), **option), NAMES)


@pytest.mark.parametrize("mistake", MISTAKES_OF_FLOAT8, ids=str)
def test_of_float8(mistake):
    x = X.astype(jnp.float8_e4m3fn)
    mistake.is_raised_by(lambda **option: flex_attention(x, x, x, **option), NAMES)


@pytest.mark.parametrize("mistake", mistakes("scale", "backend", "backends", "new_sizes", "dropout"), ids=str)
def test_of_context_parallelism(mistake):
    def call(**option):
        part = lambda x: context_parallel_attention(x, x, x, axis_name="seq", dropout_key=jax.random.key(0), **option)  # noqa: E731
        mesh = jax.sharding.Mesh(jax.devices()[:1], ("seq",))
        jax.shard_map(part, mesh=mesh, in_specs=jax.P(None, "seq"), out_specs=jax.P(None, "seq"))(X)

    mistake.is_raised_by(call, NAMES)
