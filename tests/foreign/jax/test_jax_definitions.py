"""Other projects' score and mask functions in JAX: forward and all gradients against dense attention in float64."""

import definitions
import dense_reference as dense
import gym_definitions
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from error_ratios import error_ratio

import scoremod
from scoremod.jax import flex_attention

SUITES = definitions.SUITES | gym_definitions.SUITES
CASES = [(suite, name) for suite, cases in SUITES.items() for name in cases]


def real(x, score):
    return jnp.asarray(x, score.dtype)


def largest_ratio(found, plain, truth):
    ratios = []
    for x, p, t in zip(*map(jax.tree.leaves, (found, plain, truth))):
        finite = ~np.isneginf(t)
        error, own = (np.max(np.abs(np.asarray(each, np.float64)[finite] - t[finite]), initial=0.0) for each in (x, p))
        ratios.append(error_ratio(error, own, float(jnp.finfo(x.dtype).eps) * np.max(np.abs(t[finite]), initial=0.0)))
    return max(ratios)


@pytest.mark.parametrize(("suite", "name"), CASES, ids=lambda x: x)
def test_definition(suite, name, foreign_seed, record):
    case, random = SUITES[suite][name], np.random.default_rng(foreign_seed)
    floats, integers = case.arrays(random, case.sizes)
    shapes = [(case.batch, case.seq[side], case.heads[side], 16) for side in (0, 1, 1)]
    arrays = [random.normal(size=shape).astype(np.float32) for shape in shapes] + floats
    weights = [random.normal(size=shape).astype(np.float32) for shape in (shapes[0], (case.batch, case.heads[0], case.seq[0]))]
    integers = [jnp.asarray(each) for each in integers]

    def results(attention):
        """(o, lse) and the gradients of a loss that weighs every element; the LSE counts where it is finite."""

        def loss(weights, *arrays):
            o, lse = attention(*arrays[:3], *case.make(jnp, real, *arrays[3:], *integers))
            return (o * weights[0]).sum() + jnp.where(jnp.isneginf(lse), 0, lse * weights[1]).sum(), (o, lse)

        def all_results(weights, *arrays):
            gradients, outputs = jax.grad(loss, tuple(range(1, 1 + len(arrays))), has_aux=True)(weights, *arrays)
            return [*outputs, *gradients]

        return all_results

    fused = results(lambda q, k, v, *functions: flex_attention(q, k, v, *functions, return_lse=True, backend="cpu"))
    plain = results(dense.attention_and_lse)
    found, expected = (jax.jit(function)(weights, *map(jnp.asarray, arrays)) for function in (fused, plain))
    truth = dense.in_float64(plain, weights, *arrays)
    scores = case.batch * case.heads[0] * case.seq[0] * case.seq[1]
    largest_lse = np.max(np.abs(truth[1]), initial=0.0, where=np.isfinite(truth[1]))
    dense.assert_close(found, expected, truth, captured=len(floats), scores=scores, largest_lse=largest_lse)
    record(suite, name, "jax", largest_ratio(found, expected, truth))


def test_cu_seqlens_by_the_batch_are_sliced():
    """FlashAttention-4's definitions read cu_seqlens [batch + 1] at b. Here an array at b has one entry for each batch, and the message says so."""
    starts = jnp.asarray([0, 3, 9], jnp.int32)
    q = jnp.ones((2, 8, 2, 8))
    with pytest.raises(scoremod.InvalidArgumentError, match=r"expected a size of 2 along dimension 0, one for each b, found 3. .*index a slice of it"):
        flex_attention(q, q, q, lambda score, b, h, q_idx, kv_idx: score + starts[b])
