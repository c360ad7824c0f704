"""Dropout of sequences that are sharded: what is dropped is what one call of the whole sequence drops, element for element."""

import functools

import dense_reference as dense
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from test_context_parallel import MESH, SHARDS, causal, sharded_over

import scoremod
from scoremod.jax import flex_attention
from scoremod.jax.context_parallel import context_parallel_attention, stripe, unstripe

B, S, H, D, RATE = 2, 32, 4, 8, 0.4
KEY = jax.random.key(11)
Q, K, V = (dense.random_array(i, (B, S, heads, D)) for i, heads in enumerate((H, 2, 2)))
# A value for each key of its own, so that an output shows each weight.
UNIT = jnp.broadcast_to(jnp.eye(S)[None, :, None], (B, S, 2, S))


def parallel(q, k, v, key, *, striped=False, check_vma=False, **options):
    """context_parallel_attention of whole sequences in their order; the key is an argument of the shards."""

    @functools.partial(jax.shard_map, mesh=MESH, in_specs=(*[P(None, "seq")] * 3, P()), out_specs=(P(None, "seq"), P(None, None, "seq")), check_vma=check_vma)
    def sharded(q, k, v, key):
        return context_parallel_attention(
            q, k, v, None, causal, axis_name="seq", striped=striped, dropout_rate=RATE, dropout_key=key, return_lse=True, **options
        )

    order, back = (functools.partial(f, shards=SHARDS, tokens=int(striped)) if striped else lambda x, axis: x for f in (stripe, unstripe))
    o, lse = sharded(order(q, axis=1), order(k, axis=1), order(v, axis=1), key)
    return back(o, axis=1), back(lse, axis=2)


def single(q, k, v, key):
    return flex_attention(q, k, v, None, causal, dropout_rate=RATE, dropout_key=key, return_lse=True)


WAYS = [
    *({"striped": striped} for striped in (False, True, 4)),
    *({"strategy": "all_gather", "striped": striped} for striped in (False, 2)),
    {"backend": "reference", "striped": 2},
    {"backend": "xla", "striped": 4},
]


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_as_on_one_device(options):
    def results(attention):
        def loss(q, k, v):
            o, lse = attention(q, k, v, KEY)
            return (o**2).sum() + (lse**2).sum()

        return jax.jit(lambda *x: (attention(*x, KEY), jax.grad(loss, argnums=range(3))(*x), attention(*x[:2], UNIT, KEY)[0]))(Q, K, V)

    found, expected = results(functools.partial(parallel, check_vma=options.get("striped") == 4, **options)), results(single)
    for got, want in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(got, want, atol=3e-5 * max(1, np.abs(want).max()))
    # The weights agree exactly: a weight that is not dropped is no less than exp(-20) here.
    weights, of_whole = found[-1], expected[-1]
    np.testing.assert_array_equal(weights == 0, of_whole == 0)
    assert RATE / 2 < (of_whole[:, S - 1] == 0).mean() < RATE * 2
    if options.get("strategy") == "all_gather":
        np.testing.assert_array_equal(found[0][0], expected[0][0])


def test_another_key_drops_others():
    """Negative controls: the key takes part, and so do the places."""
    dropped = lambda attention, key=KEY: np.asarray(attention(Q, K, UNIT, key)[0] == 0)  # noqa: E731
    expected = dropped(single)
    assert (dropped(parallel, jax.random.key(12)) != expected).mean() > 0.1
    # As a call of its own each shard begins at 0.
    local = jax.shard_map(
        lambda q, k, v: flex_attention(q, k, v, dropout_rate=RATE, dropout_key=KEY), mesh=MESH, in_specs=P(None, "seq"), out_specs=P(None, "seq")
    )
    part, whole = (np.asarray(o == 0)[:, S // SHARDS :] for o in (local(Q, K, UNIT), flex_attention(Q, K, UNIT, dropout_rate=RATE, dropout_key=KEY)))
    kept_by_both = ~part[..., : S // SHARDS] & ~whole[..., : S // SHARDS]
    assert kept_by_both.mean() < 0.9 * (1 - RATE)


def test_a_mask_without_bands_shares_a_program():
    """One that takes the distance as an operand, with keys of dropout after it."""
    mask_mod = lambda b, h, q_idx, kv_idx: functools.reduce(lambda x, y: x | y, [abs(q_idx - kv_idx) == 4 * n + 1 for n in range(8)])  # noqa: E731
    options = {"mask_mod": mask_mod, "dropout_rate": RATE, "dropout_key": KEY}
    np.testing.assert_allclose(jax.jit(sharded_over(8, **options))(Q, K, V), flex_attention(Q, K, V, **options), atol=1e-5)


@pytest.mark.parametrize("strategy", ["ring", "all_gather"])
def test_a_fallback(strategy):
    options = {"mask_mod": causal, "dropout_rate": RATE, "dropout_key": KEY}
    expected = flex_attention(Q, K, V, **options)
    for backends in (None, "-cpu,-reference"):
        run = sharded_over(SHARDS, strategy=strategy, fallback="xla", backends=backends, **options)
        np.testing.assert_allclose(jax.jit(run)(Q, K, V), expected, atol=1e-5)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"dropout_rate": 0.5}, "dropout_key: expected a key of jax.random"),
        ({"dropout_rate": 1.0, "dropout_key": KEY}, "dropout_rate: expected a number from 0 to below 1, in float32 at most 0.9999999403953552, found 1.0"),
    ],
)
def test_mistakes(options, message):
    with pytest.raises(scoremod.InvalidArgumentError, match=message):
        sharded_over(SHARDS, **options)(Q, K, V)
