"""context_checkpoint_name: a policy of jax.checkpoint with this name alone keeps what the backward pass needs."""

import functools

import dense_reference as dense
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scoremod.jax import flex_attention, linen, nnx, transformer_engine, transformer_layer, zoo

B, S, H, D = 2, 10, 4, 8
Q, K, V = (dense.random_array(i, (B, S, H, D)) for i in range(3))
X = dense.random_array(5, (B, S, H * D))


def of_linen(**fields):
    return lambda q: linen.DotProductAttention(mask_mod=zoo.causal(), **fields).apply({}, q, K, V)


def of_nnx(**fields):
    module = nnx.DotProductAttention(mask_mod=zoo.causal(), **fields)
    return lambda q: module(q, K, V)


def of_transformer_engine(**fields):
    return lambda q: transformer_engine.DotProductAttention(D, H, transpose_batch_sequence=False, **fields).apply({}, q, K, V)


def of_fused_attn(**fields):
    return lambda q: transformer_engine.fused_attn((q, K, V), None, None, None, "no_bias", "causal", "bshd_bshd_bshd", "vanilla", None, 0.0, True, **fields)


def forwards(layer, x, name, of="scoremod_attention_forward["):
    """How many forwards of attention a layer's gradient has, whose checkpoint keeps the results of this name. They are counted before XLA sees
    them, which may find that two are the same. of: what each forward has once in a jaxpr."""
    kept = jax.checkpoint(layer, policy=jax.checkpoint_policies.save_only_these_names(name))
    return str(jax.make_jaxpr(jax.grad(lambda x: (kept(x) ** 2).sum()))(x)).count(of)


@pytest.mark.parametrize("of", [of_linen, of_nnx, of_transformer_engine, of_fused_attn])
@pytest.mark.parametrize("softmax_type", ["vanilla", "off_by_one"])
def test_a_policy_of_the_name_keeps_all_that_the_backward_needs(of, softmax_type):
    fields = {} if of is of_fused_attn else {"softmax_type": softmax_type}
    layer = of(context_checkpoint_name="mine", **fields)
    sines = lambda q: layer(jnp.sin(q))  # noqa: E731
    assert (forwards(sines, Q, "mine"), forwards(sines, Q, "another")) == (1, 2)
    found = jax.grad(lambda q: (jax.checkpoint(sines, policy=jax.checkpoint_policies.save_only_these_names("mine"))(q) ** 2).sum())(Q)
    np.testing.assert_allclose(found, jax.grad(lambda q: (sines(q) ** 2).sum())(Q), rtol=1e-5, atol=1e-6)


def test_transformer_engines_default_is_context():
    for of in (of_transformer_engine, of_fused_attn):
        assert (forwards(of(), Q, "context"), forwards(of(), Q, "mine")) == (1, 2)
    assert forwards(of_linen(), Q, "context") == 2


def test_names_reach_the_attention_inside_of_modules():
    of_layers = {"num_heads": H, "context_checkpoint_name": "mine"}
    for module in (linen.MultiHeadAttention(**of_layers), transformer_layer.TransformerLayer(**of_layers)):
        variables = module.init(jax.random.key(0), X)
        layer = functools.partial(module.apply, variables)
        assert (forwards(layer, X, "mine"), forwards(layer, X, "another")) == (1, 2)
    ours = nnx.MultiHeadAttention(H, H * D, context_checkpoint_name="mine", rngs=pytest.importorskip("flax.nnx").Rngs(0))
    assert (forwards(ours, X, "mine"), forwards(ours, X, "another")) == (1, 2)


def test_each_module_has_its_own_name():
    """One is kept, and the other is run again."""

    def two(q):
        first, second = of_linen(context_checkpoint_name="first"), of_linen(context_checkpoint_name="second")
        return second(first(q))

    assert [forwards(two, Q, name) for name in ("first", "second", "third")] == [3, 3, 4]


def test_no_name_stays_for_the_next_call():
    with pytest.raises(RuntimeError, match="planted"):
        of_linen(context_checkpoint_name="mine", score_mod=lambda *_: raise_planted())(Q)
    assert forwards(lambda q: flex_attention(q, K, V), Q, "mine") == 2


def raise_planted():
    raise RuntimeError("planted")


def test_xla_operations_have_the_name_too():
    """Only a forward looks for the largest score of each row."""
    layer = of_linen(context_checkpoint_name="mine", backend="xla")
    assert [forwards(layer, Q, name, of="reduce_max[") for name in ("mine", "another")] == [1, 2]
