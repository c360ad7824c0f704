"""Calls with arguments of any kind: each is right in form or refused with an error of scoremod, and nothing else is ever raised."""

import inspect
import math
import os
import random as pseudo_random
import secrets

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scoremod
from scoremod.jax import flex_attention

CALLS = 300
INTEGERS = [0, 1, 2, 3, 7, -1, -5, 2**31, 2**63, -(2**63), 10**30]
FLOATS = [0.0, 1.0, 0.5, -1.0, 1e-40, 1e40, math.nan, math.inf, -math.inf]
OTHERS = [None, True, False, "", "causal", "causal_bottom_right", "kausal", b"x", (), [], {}, object(), 1j, lambda *arguments: arguments[0]]
DTYPES = [jnp.float32, jnp.float32, jnp.float32, jnp.bfloat16, jnp.float16, jnp.int32, jnp.bool_, jnp.float8_e4m3fn]
TENSORS = ("query", "key", "value")
NAMES = [name for name in inspect.signature(flex_attention).parameters if name != "unknown"] + ["causal", "mask", "segment_ids"]


def array(choose, shape=None, dtype=None):
    """A small array of JAX or NumPy, which may be empty, of any rank and dtype."""
    shape = [choose.choice([0, 1, 1, 2, 3, 4, 8]) for _ in range(choose.randint(0, 5))] if shape is None else shape
    made = jnp.asarray(np.random.default_rng(choose.randrange(2**31)).normal(size=shape), dtype=dtype or choose.choice(DTYPES))
    return np.asarray(made) if choose.random() < 0.1 else made


def right_arrays(choose):
    batch, heads, queries, keys, dim = (choose.choice(each) for each in ([1, 2], [1, 2, 4], [0, 1, 3], [0, 1, 4], [1, 8]))
    heads_kv, dtype = choose.choice([heads, heads, 1]), choose.choice([jnp.float32, jnp.bfloat16])
    shapes = [(batch, queries, heads, dim), (batch, keys, heads_kv, dim), (batch, keys, heads_kv, dim)]
    return {name: array(choose, list(shape), dtype) for name, shape in zip(TENSORS, shapes)}


def function(choose):
    bias = jnp.arange(3.0)
    return choose.choice(
        [
            None,
            lambda s, b, h, i, j: s + bias[h],
            lambda s, b, h, i, j: jnp.where(i >= j, s, -jnp.inf),
            lambda s, b, h: s,
            lambda s, b, h, i, j: None,
            lambda s, b, h, i, j: i >= j,
            lambda s, b, h, i, j: bias,
            3,
        ]
    )


def value_of(choose, name):
    kind = choose.random()
    if name.endswith("_mod") and kind < 0.8:
        return function(choose)
    if kind < 0.4:
        return array(choose)
    return choose.choice(INTEGERS + FLOATS) if kind < 0.8 else choose.choice(OTHERS)


def drawn(seed):
    choose = pseudo_random.Random(seed)
    arguments = right_arrays(choose)
    for _ in range(choose.choice([0, 1, 1, 1, 2])):
        name = choose.choice(NAMES)
        arguments[name] = value_of(choose, name)
    return arguments


def is_taken(arguments):
    try:
        found = flex_attention(*(arguments[name] for name in TENSORS), **{name: each for name, each in arguments.items() if name not in TENSORS})
    except scoremod.Error as error:
        assert not isinstance(error, scoremod.BugError), error
        assert len(str(error)) > 10, error
        return False
    o = found[0] if isinstance(found, tuple) else found
    query, value = (jnp.asarray(arguments[name]) for name in ("query", "value"))
    assert o.shape == (*query.shape[:-1], value.shape[-1])
    return True


@pytest.mark.filterwarnings("ignore")
def test_calls_of_any_kind():
    seed, taken = int(os.environ.get("SCOREMOD_TEST_SEED") or secrets.randbelow(2**31)), 0
    for number in range(CALLS):
        arguments = drawn(seed + number)
        try:
            taken += is_taken(arguments)
        except BaseException:
            print(
                "draw",
                seed + number,
                {name: (each.shape, each.dtype) if isinstance(each, (jax.Array, np.ndarray)) else each for name, each in arguments.items()},
            )
            raise
    assert CALLS / 10 < taken < CALLS
