"""The Flax NNX modules, against the linen ones with the same parameters."""

import dense_reference as dense
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scoremod
from scoremod.jax import flex_attention, linen, zoo

nnx = pytest.importorskip("flax.nnx")
modules = pytest.importorskip("scoremod.jax.nnx")

B, S, H, D = 2, 10, 4, 8
Q, K, V = (dense.random_array(i, (B, S, H, D)) for i in range(3))
FIELDS = {"attn_mask_type": "causal", "window_size": (3, -1), "softmax_type": "learnable"}


def test_the_fields_are_linens():
    ours = modules.DotProductAttention(**FIELDS, num_heads=H, scale=0.5)
    theirs = linen.DotProductAttention(**FIELDS, scale=0.5)
    offset = dense.random_array(4, (H,))
    ours.softmax_offset[...] = offset
    np.testing.assert_array_equal(ours(Q, K, V), theirs.apply({"params": {"softmax_offset": offset}}, Q, K, V))
    np.testing.assert_array_equal(ours(jnp.stack([Q, K, V], axis=2)), ours(Q, K, V))


@pytest.mark.parametrize("fields", [{}, {"num_kv_heads": 2, "use_bias": True, **FIELDS}])
def test_outputs_and_gradients_are_linens(fields):
    x = dense.random_array(5, (B, S, H * D))
    theirs = linen.MultiHeadAttention(num_heads=H, **fields)
    variables = theirs.init(jax.random.key(0), x)
    ours = modules.MultiHeadAttention(H, H * D, **fields, rngs=nnx.Rngs(0))
    for name, parameters in variables["params"].items():
        if name == "DotProductAttention_0":
            ours.attention.softmax_offset[...] = parameters["softmax_offset"]
        else:
            for each, array in parameters.items():
                getattr(getattr(ours, name), each)[...] = array
    call = {"score_mod": zoo.soft_cap(5.0)}
    np.testing.assert_allclose(ours(x, **call), theirs.apply(variables, x, **call), rtol=1e-5, atol=1e-6)
    found = nnx.jit(nnx.grad(lambda module, x: (module(x, **call) ** 2).sum()))(ours, x)
    want = jax.grad(lambda v: (theirs.apply(v, x, **call) ** 2).sum())(variables)["params"]
    for name in ("query", "key", "value", "out"):
        np.testing.assert_allclose(found[name]["kernel"][...], want[name]["kernel"], rtol=1e-4, atol=1e-5)
    if fields:
        np.testing.assert_allclose(found["attention"]["softmax_offset"][...], want["DotProductAttention_0"]["softmax_offset"], rtol=1e-4, atol=1e-5)


class Block(nnx.Module):
    """A score function that captures a parameter."""

    def __init__(self, rngs):
        self.slopes = nnx.Param(jnp.ones(H))
        self.attention = modules.MultiHeadAttention(H, H * D, mask_mod=zoo.causal(), rngs=rngs)

    def __call__(self, x):
        return self.attention(x, score_mod=zoo.alibi(self.slopes[...]))


def test_a_captured_parameter_learns():
    block, x = Block(nnx.Rngs(0)), dense.random_array(5, (B, S, H * D))
    gradient = nnx.grad(lambda block: (block(x) ** 2).sum())(block)
    assert np.abs(gradient["slopes"][...]).min() > 0


def test_dropout():
    module = modules.DotProductAttention(attention_dropout=0.5)
    np.testing.assert_array_equal(module(Q, K, V), flex_attention(Q, K, V))
    dropped = module(Q, K, V, deterministic=False, rngs=nnx.Rngs(dropout=3))
    np.testing.assert_array_equal(dropped, flex_attention(Q, K, V, dropout_rate=0.5, dropout_key=nnx.Rngs(dropout=3).dropout()))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: modules.DotProductAttention(softmax_type="learnable"), "num_heads: expected the number of query heads"),
        (lambda: modules.DotProductAttention(deterministic=True), "deterministic_gradients"),
        (lambda: modules.DotProductAttention(num_attention_heads=4), "attn_mask_type: expected one beside num_attention_heads"),
        (lambda: modules.DotProductAttention(decode=True), "decode: the module.* expected no such argument"),
        (lambda: modules.DotProductAttention(attention_dropout=0.5)(Q, K, V, deterministic=False), "rngs: expected nnx.Rngs"),
        (lambda: modules.MultiHeadAttention(4, 30, rngs=nnx.Rngs(0)), "divisor of the 30 features, found 4"),
    ],
)
def test_mistakes(make, message):
    with pytest.raises(scoremod.InvalidArgumentError, match=message):
        make()
