"""The Flax modules."""

import dense_reference as dense
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scoremod
from scoremod.jax import flex_attention, nnx, zoo
from scoremod.jax.linen import DotProductAttention, MultiHeadAttention
from scoremod.jax.transformer_layer import TransformerLayer

B, S, H, D = 2, 10, 4, 8


@pytest.mark.parametrize("layout", ["BSHD", "SBHD"])
def test_packed_arrays(layout):
    q, k, v = (dense.random_array(i, (B, S, H, D)) for i in range(3))
    module = DotProductAttention(mask_mod=zoo.causal(), layout=layout)
    want = flex_attention(q, k, v, mask_mod=zoo.causal(), layout=layout)
    calls = [(q, k, v), (q, jnp.stack([k, v], axis=2)), (jnp.stack([q, k, v], axis=2),)]
    for arguments in calls:
        np.testing.assert_array_equal(module.apply({}, *arguments), want)
    with pytest.raises(scoremod.InvalidArgumentError, match="packed array with 3"):
        module.apply({}, q)


class Block(nn.Module):
    """A score function that captures a parameter."""

    @nn.compact
    def __call__(self, x):
        table = self.param("table", nn.initializers.normal(1.0), (H, 9))
        attention = MultiHeadAttention(num_heads=H, num_kv_heads=2, mask_mod=zoo.causal())
        return attention(x, score_mod=zoo.relative_table(table))


def test_a_block_learns():
    x = dense.random_array(0, (B, S, H * D))
    variables = Block().init(jax.random.key(0), x)
    params = variables["params"]

    def reference(params):
        project = lambda name: jnp.einsum("bsf,fhd->bshd", x, params["MultiHeadAttention_0"][name]["kernel"])  # noqa: E731
        o = dense.attention(*map(project, ("query", "key", "value")), zoo.relative_table(params["table"]), zoo.causal())
        return jnp.einsum("bshd,hdf->bsf", o, params["MultiHeadAttention_0"]["out"]["kernel"])

    np.testing.assert_allclose(Block().apply(variables, x), reference(params), atol=1e-5)
    got, want = (jax.jit(jax.grad(lambda p, f=f: (f(p) ** 2).mean()))(params) for f in (lambda p: Block().apply({"params": p}, x), reference))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
        assert np.abs(a).max() > 0


def test_mistakes():
    x = jnp.ones((B, S, 30))
    with pytest.raises(scoremod.InvalidArgumentError, match="divisor of the 30 features, found 4"):
        MultiHeadAttention(num_heads=4).init(jax.random.key(0), x)


@pytest.mark.parametrize("module", [lambda **fields: DotProductAttention(**fields), lambda **fields: MultiHeadAttention(num_heads=2, **fields)])
def test_flax_name_of_having_no_dropout_is_not_taken_for_deterministic_gradients(module):
    for value in True, False:
        with pytest.raises(scoremod.InvalidArgumentError, match="deterministic: .*dropout.*deterministic_gradients"):
            module(deterministic=value)
    assert module(deterministic_gradients=True).deterministic_gradients


def window_and_distance(s, b, h, q_idx, kv_idx):
    return s + 0.1 * (kv_idx - q_idx)


@pytest.mark.parametrize("fields", [{}, {"window_size": (3, 0)}, {"softmax_type": "off_by_one", "num_kv_heads": 2}])
def test_decoding_gives_what_the_whole_sequence_does(fields):
    x = dense.random_array(0, (B, S, H * D))
    make = lambda **more: MultiHeadAttention(num_heads=H, score_mod=window_and_distance, **fields, **more)  # noqa: E731
    whole = make(attn_mask_type="causal")
    params = whole.init(jax.random.key(0), x)["params"]
    want = whole.apply({"params": params}, x)
    decoder = make(decode=True)
    cache = decoder.init(jax.random.key(0), x)["cache"]
    step = jax.jit(lambda cache, tokens: decoder.apply({"params": params, "cache": cache}, tokens, mutable=["cache"]))
    found, first = [], 0
    for count in (3, 1, 1, 4, 1):  # several at first, as for a prompt
        o, variables = step(cache, x[:, first : first + count])
        cache, first = variables["cache"], first + count
        found.append(o)
    np.testing.assert_allclose(jnp.concatenate(found, axis=1), want, rtol=1e-5, atol=1e-5)
    assert int(cache["cache_index"]) == S
    with pytest.raises(scoremod.InvalidArgumentError, match="decode: expected keys of shape"):
        step(cache, jnp.ones((B, S + 1, H * D)))
    with pytest.raises(scoremod.InvalidArgumentError, match="decode: expected no sequence_descriptor"):
        make(decode=True, attn_mask_type="padding").init(jax.random.key(0), x)


def test_decoding_beyond_the_cache():
    x = dense.random_array(0, (B, S, H * D))
    module = MultiHeadAttention(num_heads=H, num_kv_heads=2, softmax_type="off_by_one", decode=True)
    variables = module.init(jax.random.key(0), x)
    step = lambda cache, tokens: module.apply({"params": variables["params"], "cache": cache}, tokens, mutable=["cache"])  # noqa: E731
    jitted = jax.jit(step)
    o, filled = jitted(variables["cache"], x)
    assert np.isfinite(o).all()
    with pytest.raises(scoremod.InvalidArgumentError, match=f"decode: expected at most {S} tokens in all, .* found {S} in it and 1 more"):
        step(filled["cache"], x[:, :1])
    beyond = filled
    for _ in range(2):
        o, beyond = jitted(beyond["cache"], x[:, :1])
        assert np.isnan(o).all()
    for name in ("cached_key", "cached_value"):  # which a caller may go back in
        np.testing.assert_array_equal(beyond["cache"][name], filled["cache"][name])
    some = {**filled["cache"], "cache_index": jnp.int32(S - 2)}
    o, changed = jitted(some, x[:, :3])
    assert np.isnan(o).all() and int(changed["cache"]["cache_index"]) == S + 1
    assert np.isfinite(jitted(some, x[:, :2])[0]).all()


def test_modules_take_graph_callbacks():
    q, k, v = (dense.random_array(i, (B, S, H, D)) for i in range(3))
    capped = lambda graph, score, tensors: graph.mul(graph.tanh(graph.mul(score, 0.5)), tensors["cap"])  # noqa: E731
    slope = lambda graph, dscore, tensors: graph.mul(dscore, tensors["slope"])  # noqa: E731
    module = DotProductAttention(score_mod=capped, attn_mask_type="causal")
    want = flex_attention(q, k, v, lambda s, *_: 2 * jnp.tanh(s * 0.5), zoo.causal())
    np.testing.assert_allclose(module.apply({}, q, k, v, score_mod_tensors={"cap": 2.0}), want, rtol=1e-5, atol=1e-6)
    wrong = DotProductAttention(score_mod=capped, score_mod_bprop=slope)
    tensors = {"score_mod_tensors": {"cap": 2.0}, "score_mod_bprop_tensors": {"slope": 3.0}}
    with pytest.raises(scoremod.InvalidArgumentError, match="expected the derivative of score_mod"):
        wrong.apply({}, q, k, v, **tensors)


def test_a_layer_is_its_parts():
    x, encoded = (dense.random_array(i, (B, S, H * D)) for i in range(2))
    layer = TransformerLayer(num_heads=H, score_mod=window_and_distance, attn_mask_type="causal", layer_type="decoder", softmax_type="off_by_one")
    variables = layer.init(jax.random.key(0), x, encoded)
    parts = {name: {"params": each} for name, each in variables["params"].items()}
    norm = lambda name, x: nn.LayerNorm().apply(parts[name], x)  # noqa: E731
    own = MultiHeadAttention(num_heads=H, score_mod=window_and_distance, attn_mask_type="causal", softmax_type="off_by_one")
    y = x + own.apply(parts["self_attention"], norm("self_attention_norm", x))
    cross = MultiHeadAttention(num_heads=H, softmax_type="off_by_one")
    y = y + cross.apply(parts["cross_attention"], norm("cross_attention_norm", y), encoded)
    hidden = nn.gelu(norm("mlp_norm", y) @ parts["mlp_in"]["params"]["kernel"])
    np.testing.assert_allclose(layer.apply(variables, x, encoded), y + hidden @ parts["mlp_out"]["params"]["kernel"], rtol=1e-5, atol=1e-5)
    for wrong in (lambda: layer.apply(variables, x), lambda: TransformerLayer(num_heads=H).init(jax.random.key(0), x, encoded)):
        with pytest.raises(scoremod.InvalidArgumentError, match="encoded: expected an encoder's output exactly for"):
            wrong()
    with pytest.raises(scoremod.InvalidArgumentError, match="layer_type: expected one of encoder, decoder"):
        TransformerLayer(num_heads=H, layer_type="both").init(jax.random.key(0), x)


def test_a_layer_drops_and_decodes():
    x = dense.random_array(0, (B, S, H * D))
    layer = TransformerLayer(num_heads=H, attn_mask_type="causal", hidden_dropout=0.5)
    variables = layer.init(jax.random.key(0), x)
    whole = layer.apply(variables, x)
    dropped = layer.apply(variables, x, deterministic=False, rngs={"dropout": jax.random.key(1)})
    assert np.abs(dropped - whole).max() > 0.1
    decoder = TransformerLayer(num_heads=H, decode=True)
    cache = decoder.init(jax.random.key(0), x)["cache"]
    for i in range(S):
        o, changed = decoder.apply({**variables, "cache": cache}, x[:, i : i + 1], mutable=["cache"])
        cache = changed["cache"]
        np.testing.assert_allclose(o[:, 0], whole[:, i], rtol=1e-5, atol=1e-5)


FLOAT8_FACTORS = {"descale_q": 0.05, "descale_k": 0.06, "descale_v": jnp.float32(0.03)}


@pytest.mark.parametrize("made", [lambda **fields: DotProductAttention(**fields).bind({}), lambda **fields: nnx.DotProductAttention(**fields)])
def test_float8_arrays_have_factors_at_the_call(made):
    """The outputs and gradients are those of flex_attention, and the output that of a dense attention of the numbers."""
    rng = np.random.default_rng(0)
    arrays = [jnp.asarray(rng.normal(0, 32, (B, S, H, D)), jnp.float32).astype(jnp.float8_e4m3fn) for _ in range(3)]
    module = made(attn_mask_type="causal")
    mask_mod = lambda b, h, i, j: i >= j  # noqa: E731
    options = {**FLOAT8_FACTORS, "scale_dq": 3.0, "out_dtype": jnp.float32, "return_amax_o": True}
    o, amax = module(*arrays, **options)
    for found, want in zip((o, amax), flex_attention(*arrays, mask_mod=mask_mod, **options)):
        np.testing.assert_array_equal(found, want)
    numbers = [np.asarray(x, np.float32) * np.float32(factor) for x, factor in zip(arrays, FLOAT8_FACTORS.values())]
    truth = dense.in_float64(lambda *x: dense.attention(*x, mask_mod=mask_mod), *map(jnp.asarray, numbers))
    np.testing.assert_allclose(o, truth, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(amax, np.abs(truth).max(), rtol=1e-5)
    del options["return_amax_o"]
    of_module, of_function = (
        jax.vjp(lambda *x, f=f: f(*x, **options), *arrays)[1](jnp.ones_like(o)) for f in (module, lambda *x, **y: flex_attention(*x, mask_mod=mask_mod, **y))
    )
    for found, want in zip(of_module, of_function):
        np.testing.assert_array_equal(np.asarray(found, np.float32), np.asarray(want, np.float32))


def test_factors_are_refused_beside_wider_arrays_and_by_a_wrong_name():
    q = jnp.ones((B, S, H, D))
    module = DotProductAttention()
    with pytest.raises(scoremod.InvalidArgumentError, match="descale_q: expected none beside a query of float32"):
        module.apply({}, q, q, q, descale_q=1.0)
    with pytest.raises(scoremod.InvalidArgumentError, match="descale_x"):
        module.apply({}, q, q, q, descale_x=1.0)
