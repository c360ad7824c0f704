"""Graph callbacks beside sequences of all lengths and paged keys, against each sequence by itself with dense attention in float64."""

import os

import dense_reference as dense
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scoremod
from scoremod.jax import explain, fused_attention

SEED = int(os.environ.get("SCOREMOD_TEST_SEED", 0)) or int.from_bytes(os.urandom(4), "little")
H, G, D, LONGEST = 4, 2, 8, 16
LOW = -1e9


def biased_and_causal(graph, score, tensors):
    """tanh(score) + bias over the keys up to the query."""
    row, column = graph.gen_index(input=score, axis=2), graph.gen_index(input=score, axis=3)
    added = graph.add(a=graph.mul(a=graph.tanh(input=score), b=tensors["slope"]), b=tensors["bias"])
    return graph.binary_select(input0=added, input1=tensors["low"], mask=graph.cmp_ge(input=row, comparison=column))


def by_itself(parts):
    """A jitted function of (slope, bias, q, k, v, d_o), of which each part (sequence, its query tokens, its key tokens) attends to itself. It returns
    the output, and the gradients of the others."""

    def attend(slope, bias, q, k, v):
        out = []
        for b, of_q, of_k in parts:

            def score(s, _, h, i, j, b=b):
                return jnp.tanh(s) * slope[b, h, 0, 0] + bias[0, h, i, j]

            out.append(dense.attention(q[None, of_q], k[None, of_k], v[None, of_k], score, lambda _, h, i, j: i >= j)[0])
        return jnp.concatenate(out)

    return with_gradients(attend)


def with_gradients(attend):
    def both(*arrays):
        o, pull_back = jax.vjp(attend, *arrays[:-1])
        return o, *pull_back(arrays[-1])

    return jax.jit(both)


def assert_is_dense(found, plain, arrays):
    dense.assert_close(found, plain(*arrays), dense.in_float64(plain, *arrays), common_scale=True)


def drawn(seed, *shapes):
    print(f"SCOREMOD_TEST_SEED={SEED}")
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes]


OFFSETS = np.array([0, 4, 4, 19, 20])
OF_SEQUENCES = by_itself([(b, slice(a, z), slice(a, z)) for b, (a, z) in enumerate(zip(OFFSETS, OFFSETS[1:])) if a < z])


@with_gradients
def sequences(slope, bias, q, k, v):
    tensors = {"slope": slope, "bias": bias, "low": LOW}
    return fused_attention(q, k, v, layout="THD", q_offsets=OFFSETS, max_length=LONGEST, score_mod=biased_and_causal, score_mod_tensors=tensors)


def test_sequences_of_all_lengths():
    tokens = int(OFFSETS[-1])
    shapes = [(4, H, 1, 1), (1, H, LONGEST, LONGEST), (tokens, H, D), (tokens, G, D), (tokens, G, D), (tokens, H, D)]
    arrays = drawn(SEED, *shapes)
    assert_is_dense(sequences(*arrays), OF_SEQUENCES, arrays)
    with pytest.raises(AssertionError):  # of a bias that begins one position later
        assert_is_dense(sequences(arrays[0], jnp.roll(arrays[1], 1, 3), *arrays[2:]), OF_SEQUENCES, arrays)


LENGTHS, TABLE = np.array([5, 16, 1]), np.array([[9, 2, 5, 0], [13, 7, 4, 1], [10, 3, 11, 6]])
OF_PAGES = by_itself([(b, slice(b * LONGEST, (b + 1) * LONGEST), slice(b * LONGEST, b * LONGEST + n)) for b, n in enumerate(LENGTHS)])


@with_gradients
def pages(slope, bias, q, k, v):
    """Query tokens, and keys and values that are written to pages, are [sequences * LONGEST, heads, dim]."""
    keys, values = (jnp.zeros((14, 4, G, D), jnp.float32).at[TABLE].set(x.reshape(3, 4, 4, G, D)) for x in (k, v))
    tensors = {"slope": slope, "bias": bias, "low": LOW}
    o = fused_attention(q.reshape(3, LONGEST, H, D), keys, values, page_table=TABLE, lengths=LENGTHS, score_mod=biased_and_causal, score_mod_tensors=tensors)
    return o.reshape(q.shape)


def test_pages():
    tokens = 3 * LONGEST
    arrays = drawn(SEED + 1, (3, H, 1, 1), (1, H, LONGEST, LONGEST), (tokens, H, D), (tokens, G, D), (tokens, G, D), (tokens, H, D))
    assert_is_dense(pages(*arrays), OF_PAGES, arrays)


def test_a_backward_is_compared_there_too():
    x = jnp.ones((9, 2, D))
    places = {"layout": "THD", "q_offsets": np.array([0, 4, 9])}
    tensors = {"score_mod_tensors": {"bias": jnp.ones((1, 1, 9, 9))}}
    double = lambda graph, score, tensors: graph.add(a=graph.mul(a=score, b=2.0), b=tensors["bias"])  # noqa: E731
    with pytest.raises(scoremod.InvalidArgumentError, match="score_mod_bprop: expected the derivative of score_mod, .*256 of 256 samples differ"):
        fused_attention(x, x, x, score_mod=double, score_mod_bprop=lambda graph, dscore, tensors: graph.identity(input=dscore), **tensors, **places)
    fused_attention(x, x, x, score_mod=double, score_mod_bprop=lambda graph, dscore, tensors: graph.mul(a=dscore, b=2.0), **tensors, **places)


def test_it_is_explained_and_mistakes_are_named():
    x, offsets = jnp.ones((9, 2, D)), np.array([0, 4, 9])
    found = explain(x, x, x, lambda graph, score, tensors: graph.tanh(input=score), score_mod_tensors={}, layout="THD", q_offsets=offsets)
    assert "tanh(score)" in found.program
    for shape in ((1, 1, 1, 4), (3, 1, 1, 1), (1, 4, 1, 1)):
        with pytest.raises(scoremod.InvalidArgumentError, match=r"score_mod_tensors\['bias'\]: expected a shape that broadcasts to \(2, 2, 5, 5\), found"):
            add = lambda graph, score, tensors: graph.add(a=score, b=tensors["bias"])  # noqa: E731
            fused_attention(x, x, x, layout="THD", q_offsets=offsets, score_mod=add, score_mod_tensors={"bias": jnp.ones(shape)})
