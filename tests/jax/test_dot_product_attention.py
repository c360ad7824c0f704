"""scoremod.jax.dot_product_attention beside jax.nn's: random arguments, values and gradients in float64, and what either refuses."""

import os
import random as pseudo_random
import secrets

import dense_reference as dense
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scoremod
from scoremod.jax import dot_product_attention

DRAWS = 12


def drawn(seed):
    """(q, k, v, bias or None), and other arguments, with which each query has a key."""
    choose, random = pseudo_random.Random(seed), np.random.default_rng(seed)
    batch, heads_kv, group, dim = choose.choice([1, 2]), choose.choice([1, 2]), choose.choice([1, 2]), choose.choice([8, 16])
    queries, keys, heads = choose.choice([1, 5, 9]), choose.choice([4, 11]), heads_kv * group
    is_one = choose.random() < 0.2 and batch == 1

    def broadcast():
        shape = [choose.choice([1, size]) for size in (batch, heads, queries, keys)]
        return shape[1:] if shape[0] == 1 and choose.random() < 0.3 else shape

    arrays = [random.normal(size=(batch, n, h, dim)).astype(np.float32) for n, h in ((queries, heads), (keys, heads_kv), (keys, heads_kv))]
    options = {"is_causal": choose.random() < 0.3, "scale": choose.choice([None, 0.3])}
    bias = choose.choice([None, random.normal(size=broadcast()).astype(np.float32)])
    if choose.random() < 0.5:
        mask = random.random(broadcast()) < 0.6
        mask[..., 0] = True
        options["mask"] = mask
    if not is_one and choose.random() < 0.5:
        options["key_value_seq_lengths"] = random.integers(1, keys + 1, batch).astype(np.int32)
    if not is_one and choose.random() < 0.4:
        options["query_seq_lengths"] = random.integers(1, queries + 1, batch).astype(np.int32)
    if "mask" not in options and "key_value_seq_lengths" not in options and queries <= keys:
        options["local_window_size"] = choose.choice([None, 2, (3, 1), (0, 0)])
    if is_one:
        arrays = [each[0] for each in arrays]
    return arrays if bias is None else [*arrays, bias], options


def results(attention, options):
    def all_of(*arrays):
        def loss(*arrays):
            bias = arrays[3] if len(arrays) > 3 else None
            o = attention(*arrays[:3], bias, **options)
            return (o.astype(jnp.float32 if o.dtype == jnp.bfloat16 else o.dtype) ** 2).sum(), o

        gradients, o = jax.grad(loss, tuple(range(len(arrays))), has_aux=True)(*arrays)
        return [o, *gradients]

    return all_of


def test_random_arguments():
    seed = int(os.environ.get("SCOREMOD_TEST_SEED") or secrets.randbelow(2**31))
    for number in range(DRAWS):
        arrays, options = drawn(seed + number)
        print("draw", seed + number, [each.shape for each in arrays], {name: getattr(each, "shape", each) for name, each in options.items()})
        plain = results(jax.nn.dot_product_attention, options)
        found = jax.jit(results(dot_product_attention, options))(*arrays)
        truth = dense.in_float64(plain, *arrays)
        scores = arrays[0].size // arrays[0].shape[-1] * arrays[1].shape[-3]
        bias = arrays[3] if len(arrays) > 3 else None
        lse = np.asarray(jax.nn.dot_product_attention(*arrays[:3], bias, return_residual=True, **options)[1])
        largest_lse = np.abs(lse[lse > -1e9]).max()  # of queries that have keys
        dense.assert_close(found, jax.jit(plain)(*arrays), truth, captured=len(arrays) - 3, scores=scores, common_scale=True, largest_lse=largest_lse)


def test_the_residual_is_the_log_sum_exp():
    arrays, _ = drawn(7)
    found = dot_product_attention(*arrays[:3], return_residual=True)
    expected = jax.nn.dot_product_attention(*arrays[:3], return_residual=True)
    assert found[1].shape == expected[1].shape and found[1].dtype == expected[1].dtype
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5, atol=1e-5)
    assert not jax.grad(lambda q: dot_product_attention(q, *arrays[1:3], return_residual=True)[1].sum())(arrays[0]).any()


def test_a_query_without_any_key_gives_zero():
    arrays, _ = drawn(7)
    keys = arrays[1].shape[-3]
    o, residual = dot_product_attention(*arrays[:3], mask=np.zeros((1, 1, 1, keys), bool), return_residual=True)
    assert not o.any() and np.isneginf(residual).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"implementation": "cudnn"}, "backends= names"),
        ({"mask": np.ones((1, 1, 5, 4), np.float32)}, "mask: expected bools"),
        ({"bias": np.ones((1, 3, 1, 1))}, "bias: expected a shape that broadcasts"),
        ({"bias": np.ones(4)}, "bias: expected a shape that broadcasts"),
        ({"key": np.ones((4, 2, 8), np.float32)}, "expected query, key and value of 4 dimensions"),
        ({"local_window_size": "wide"}, "local_window_size: expected"),
    ],
)
def test_mistakes(change, message):
    arguments = {name: np.ones((1, n, 2, 8), np.float32) for name, n in (("query", 5), ("key", 4), ("value", 4))} | change
    with pytest.raises(scoremod.Error, match=message):
        dot_product_attention(**arguments)
