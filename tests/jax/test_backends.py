"""Which backends run a call is decided as everywhere else in scoremod: by the caller, SCOREMOD_BACKENDS, or predicted times."""

import functools
import os
import secrets

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scoremod
from jax.sharding import PartitionSpec as P
from scoremod.jax import explain, flex_attention, fused_attention, fused_attn
from scoremod.jax.context_parallel import context_parallel_attention

SHAPE = (1, 40, 2, 16)
SEED = int(os.environ.get("SCOREMOD_TEST_SEED") or secrets.randbelow(2**31))
PREDICTION = "predicted time"


def soft_cap(score, b, h, q_idx, kv_idx):
    return 2.0 * jnp.tanh(score / 2.0)


@pytest.fixture(scope="module")
def outputs():
    """(arrays, backend -> its output, to the last bit): float64 and float32 round differently."""
    print(f"SCOREMOD_TEST_SEED={SEED}")
    generator = np.random.default_rng(SEED)
    arrays = [generator.standard_normal(SHAPE).astype(np.float32) for _ in "qkv"]
    each = {name: scoremod.attention(*arrays, score_mod="2.0 * tanh(score / 2.0)", backend=name) for name in ("cpu", "reference")}
    assert not np.array_equal(each["cpu"], each["reference"])
    return arrays, each


def ran_on(outputs, attention=flex_attention, **selection):
    """The backend whose bits a compiled call gave."""
    arrays, each = outputs
    got = jax.jit(functools.partial(attention, score_mod=soft_cap, **selection))(*arrays)
    (name,) = (name for name, want in each.items() if np.array_equal(got, want))
    return name


@pytest.mark.parametrize(
    "selection, expected",
    [
        ({}, "cpu"),
        ({"backend": "reference"}, "reference"),
        ({"backends": "reference,cpu"}, "reference"),
        ({"backends": ["cpu", "reference"]}, "cpu"),
        ({"backends": ["-cpu"]}, "reference"),
        ({"backends": "-reference"}, "cpu"),
        ({"backends": []}, "cpu"),
    ],
)
def test_the_caller_decides(outputs, selection, expected):
    assert ran_on(outputs, **selection) == expected
    arrays = outputs[0]
    explanation = explain(*arrays, soft_cap, **selection)
    assert explanation.backend == expected
    assert explanation.decided_by == ("the caller" if any(selection.values()) else PREDICTION)
    assert str(explanation).endswith(f"runs on: {expected}, chosen by {explanation.decided_by}")


def test_the_environment_decides_where_the_caller_does_not(outputs, monkeypatch):
    monkeypatch.setenv("SCOREMOD_BACKENDS", "-cpu")
    assert ran_on(outputs) == "reference"
    assert explain(*outputs[0]).decided_by == "SCOREMOD_BACKENDS"
    assert ran_on(outputs, backends="cpu") == "cpu"


def test_backends_of_other_memory_are_passed_over(outputs):
    names = [answer["backend"] for answer in scoremod.support({"batch": 1, "heads_q": 1, "seq_q": 1, "dim_qk": 8}, level="static")]
    if "cudnn" not in names:
        pytest.skip("this build has no backend for a GPU's memory")
    assert ran_on(outputs, backends="cudnn,reference") == "reference"
    with pytest.raises(
        scoremod.UnsupportedError,
        match="expected one that runs in host memory, where the tensors are; found none among those chosen by the caller; choose among .*cpu.*fallback=",
    ):
        flex_attention(*outputs[0], backend="cudnn")


def test_a_gradient_runs_on_what_was_selected(outputs):
    """The reference's gradients, to the last bit: the backward call carries the selection, too."""
    arrays = outputs[0]
    gradients = jax.jit(jax.grad(lambda *x: flex_attention(*x, soft_cap, backends="-cpu").sum(), argnums=(0, 1, 2)))(*arrays)
    problem = {"batch": 1, "heads_q": 2, "seq_q": 40, "dim_qk": 16, "backward": True, "program": "value = 2.0 * tanh(score / 2.0)"}
    reference = scoremod.Attention(problem, backend="reference")
    o, lse = reference.forward(*arrays, return_lse=True)
    wanted = reference.backward(*arrays, o, lse, np.ones_like(o))
    for got, want in zip(gradients, (wanted.dq, wanted.dk, wanted.dv), strict=True):
        np.testing.assert_array_equal(got, want)


def module(*arrays, score_mod, **selection):
    linen = pytest.importorskip("scoremod.jax.linen")
    return linen.DotProductAttention(score_mod=score_mod, **selection).apply({}, *arrays)


def module_of_nnx(*arrays, score_mod, **selection):
    nnx = pytest.importorskip("scoremod.jax.nnx")
    return nnx.DotProductAttention(score_mod=score_mod, **selection)(*arrays)


def graph(*arrays, score_mod, **selection):
    cap = lambda graph, score, tensors: graph.mul(graph.tanh(graph.div(score, tensors["cap"])), tensors["cap"])  # noqa: E731
    return fused_attention(*arrays, score_mod=cap, score_mod_tensors={"cap": 2.0}, **selection)


def by_name(*arrays, score_mod, **selection):
    rest = (None, None, None, "no_bias", "no_mask", "BSHD_BSHD_BSHD", "vanilla", SHAPE[-1] ** -0.5, 0.0, False)
    return fused_attn(arrays, *rest, score_mod=score_mod, **selection)


def sharded(*arrays, score_mod, **selection):
    mesh = jax.make_mesh((1,), ("seq",), axis_types=(jax.sharding.AxisType.Auto,))
    attention = functools.partial(context_parallel_attention, score_mod=score_mod, axis_name="seq", strategy="all_gather", **selection)
    return jax.shard_map(attention, mesh=mesh, in_specs=P(None, "seq"), out_specs=P(None, "seq"))(*arrays)


ALL_THAT_ATTEND = (flex_attention, module, module_of_nnx, graph, by_name, sharded)


@pytest.mark.parametrize("attention", ALL_THAT_ATTEND)
def test_it_is_passed_on_by_all_that_attend(outputs, attention):
    assert ran_on(outputs, attention, backends=["-cpu"]) == "reference"
    assert ran_on(outputs, attention) == "cpu"


@pytest.mark.parametrize("attention", ALL_THAT_ATTEND)
def test_new_sizes_is_passed_on_by_all_that_attend(outputs, attention):
    lowered = {
        given: jax.jit(functools.partial(attention, score_mod=soft_cap, **({"new_sizes": given} if given else {}))).lower(*outputs[0]).as_text()
        for given in (None, "wait", "serve")
    }
    assert "new_sizes" not in lowered[None]
    assert all(f'new_sizes = "{given}"' in lowered[given] for given in ("wait", "serve"))


def test_a_layer_passes_new_sizes_on():
    layer = pytest.importorskip("scoremod.jax.transformer_layer").TransformerLayer
    x = jnp.ones((1, 8, 16))
    made = layer(num_heads=2, layer_type="decoder", new_sizes="serve")
    variables = made.init(jax.random.key(0), x, x)
    assert jax.jit(made.apply).lower(variables, x, x).as_text().count('new_sizes = "serve"') == 2


def test_what_runs_was_compiled_with_new_sizes():
    """Python's request at lowering and that of XLA's handler are for one attention; another argument asks for another one."""
    length = int(np.random.default_rng(SEED).integers(2000, 4000))  # no other test's
    print(f"SCOREMOD_TEST_SEED={SEED}")
    q = jnp.ones((1, length, 1, 8))

    def attentions_made_by(**selection):
        before = scoremod.cache.statistics()["attentions"]["misses"]
        jax.jit(lambda x: flex_attention(x, x, x, backend="cpu", **selection))(q)
        return scoremod.cache.statistics()["attentions"]["misses"] - before

    assert [attentions_made_by(new_sizes=given) for given in ("serve", "wait", None, "serve")] == [1, 1, 1, 0]


def test_settings_of_new_sizes_compile_anew(outputs, monkeypatch):
    """JAX keeps what it compiles by equal calls, of which the environment is a part."""
    run = lambda: jax.make_jaxpr(lambda *x: flex_attention(*x))(*outputs[0])  # noqa: E731
    before = str(run())
    assert str(run()) == before
    monkeypatch.setenv("SCOREMOD_NEW_SIZES", "serve")
    assert str(run()) != before


def test_a_fallback_where_nothing_is_left(outputs):
    arrays, each = outputs
    with pytest.raises(scoremod.UnsupportedError, match=r"the caller.*backend=\"xla\""):
        flex_attention(*arrays, soft_cap, backends="-cpu,-reference")
    got = flex_attention(*arrays, soft_cap, backends="-cpu,-reference", fallback="xla")
    np.testing.assert_allclose(got, each["reference"], atol=1e-5)


@pytest.mark.parametrize(
    "selection, message",
    [
        ({"backend": "gpu"}, "'gpu'"),
        ({"backends": ["-gpu"]}, "'gpu'"),
        ({"backend": "cpu", "backends": "cpu"}, "found both"),
        ({"backend": "xla", "backends": "cpu"}, "found both"),
        ({"backends": "cpu,xla"}, 'fallback="xla"'),
        ({"backends": ["-xla"]}, 'found "xla"'),
        ({"backends": ["cpu", 3]}, "expected names"),
        ({"backends": 3}, "expected names"),
        ({"backend": ["cpu"]}, "several go into backends="),
        ({"new_sizes": "later"}, "new_sizes: expected 'wait' or 'serve', found 'later'"),
        ({"new_sizes": ["wait"]}, "new_sizes: expected 'wait' or 'serve'"),
        ({"new_sizes": np.ones(2)}, "new_sizes: expected 'wait' or 'serve'"),
        ({"backend": "xla", "new_sizes": 1}, "new_sizes: expected 'wait' or 'serve', found 1"),
    ],
)
@pytest.mark.parametrize("fallback", [None, "xla"])
def test_misuse(outputs, selection, message, fallback):
    """A slip in a name is no reason to fall back."""
    with pytest.raises(scoremod.InvalidArgumentError, match=message):
        flex_attention(*outputs[0], fallback=fallback, **selection)
