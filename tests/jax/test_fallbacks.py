"""Calls that go another way than the caller may think are warned of, where the caller's line is, and counted."""

import functools
import warnings

import dense_reference as dense
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from scoremod.jax import fallback_counts, flex_attention, fused_attention
from scoremod.jax.context_parallel import context_parallel_attention

B, S, H, D = 2, 12, 2, 8
Q, K, V = (dense.random_array(i, (B, S, H, D)) for i in range(3))


def counted(run):
    """(what run returns, the warnings that name this file, how much each count has grown)."""
    before = fallback_counts()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        result = run()
    texts = [str(each.message) for each in found if each.filename == __file__]
    return result, texts, {name: count - before[name] for name, count in fallback_counts().items()}


def unknown(score, *_):
    return jax.lax.erf_inv(0.5 * jnp.tanh(score))


def test_a_fallback_is_warned_of_and_counted():
    o, texts, counts = counted(lambda: flex_attention(Q, K, V, unknown, fallback="xla"))
    assert len(texts) == 1 and texts[0].startswith('fallback="xla": XLA operations run this attention, since ') and "erf_inv" in texts[0]
    assert counts == {"xla": 1, "uncompared_bprop": 0}
    np.testing.assert_array_equal(o, flex_attention(Q, K, V, unknown, backend="xla"))
    _, texts, counts = counted(lambda: flex_attention(Q, K, V, backends="-cpu,-reference", fallback="xla"))
    assert counts["xla"] == 1 and "no backend on the platform 'cpu'" in texts[0] and texts[0].count("XLA operations") == 1


def test_sequences_with_dropout_on_xla_are_warned_of():
    tokens, offsets = Q.reshape(-1, H, D), jnp.array([0, 5, B * S])
    options = {"layout": "THD", "q_offsets": offsets, "dropout_rate": 0.5, "dropout_key": jax.random.key(1), "backends": "-cpu,-reference"}
    _, texts, counts = counted(lambda: flex_attention(tokens, tokens, tokens, fallback="xla", **options))
    assert counts["xla"] == 1 and "whose positions decide what is dropped" in texts[0]


def test_shards_of_a_sequence_are_warned_of():
    mesh = Mesh(np.asarray(jax.devices()[:2]), ("seq",))
    part = functools.partial(context_parallel_attention, axis_name="seq", score_mod=unknown, fallback="xla")
    run = jax.shard_map(lambda *x: part(*x), mesh=mesh, in_specs=P(None, "seq"), out_specs=P(None, "seq"))
    _, texts, counts = counted(lambda: run(Q, K, V))
    assert counts["xla"] == 1 and len(texts) == 1 and "erf_inv" in texts[0]


@pytest.mark.parametrize("options", [{}, {"fallback": "xla"}, {"backend": "xla"}])
def test_what_runs_as_it_was_asked_for_is_not_counted(options):
    _, texts, counts = counted(lambda: flex_attention(Q, K, V, lambda s, *_: 2 * s, **options))
    assert texts == [] and counts == {"xla": 0, "uncompared_bprop": 0}


def test_a_jitted_function_is_counted_once():
    run = jax.jit(lambda q: flex_attention(q, K, V, unknown, fallback="xla"))
    _, texts, counts = counted(lambda: [run(Q) for _ in range(3)])
    assert counts["xla"] == 1 and len(texts) == 1


def test_a_backward_that_cannot_be_compared_is_warned_of_and_counted():
    def attention(factor):
        return fused_attention(
            Q, K, V,
            score_mod=lambda graph, score, tensors: graph.mul(a=score, b=tensors["factor"]),
            score_mod_bprop=lambda graph, dscore, tensors: graph.div(a=dscore, b=tensors["other"]),
            score_mod_tensors={"factor": factor}, score_mod_bprop_tensors={"other": 1 / factor},
        )  # fmt: skip

    _, texts, counts = counted(lambda: attention(jnp.float32(2)))
    assert texts == [] and counts["uncompared_bprop"] == 0
    _, texts, counts = counted(lambda: jax.jit(attention)(jnp.float32(2)))
    assert counts == {"xla": 0, "uncompared_bprop": 1} and len(texts) == 1 and texts[0].startswith("score_mod_bprop: it was not compared")
