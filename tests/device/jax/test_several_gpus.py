"""Batches, heads and sequences over the GPUs of one host, equal to one GPU."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cuda_devices import cuda_devices
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from test_cuda import learned, learned_arrays, qkv

from scoremod.jax import flex_attention
from scoremod.jax.context_parallel import STRATEGIES, context_parallel_attention, stripe, unstripe

pytestmark = pytest.mark.skipif(len(cuda_devices()) < 2, reason="one NVIDIA GPU or none")


def loss(slopes, cap, table, q, k, v, attention=flex_attention):
    score_mod, mask_mod = learned(slopes, cap, table)
    o = attention(q, k, v, score_mod, mask_mod)
    return (o.astype(jnp.float32) ** 2).sum(), o


def close(one, other):
    one, other = np.asarray(one, np.float32), np.asarray(other, np.float32)
    # Both round to bfloat16; sums over shards are in another order.
    assert np.linalg.norm(one - other) <= 2e-2 * np.linalg.norm(other)


@pytest.mark.parametrize("axis", ["batch", "heads"])
def test_batches_and_heads_are_not_gathered(axis):
    count = len(cuda_devices())
    arrays = [*learned_arrays(heads=count * 2), *qkv(heads_kv=count * 2, heads=count * 2, batch=count * 2)]
    step = jax.jit(jax.value_and_grad(loss, argnums=tuple(range(6)), has_aux=True))
    (_, o), gradients = step(*arrays)
    mesh = Mesh(np.asarray(cuda_devices()), ("shards",))
    tensor = P("shards") if axis == "batch" else P(None, None, "shards")
    per_head = P() if axis == "batch" else P("shards")
    specs = [per_head, P(), per_head, tensor, tensor, tensor]
    sharded = [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip(arrays, specs)]
    compiled = step.lower(*sharded).compile()
    (_, sharded_o), sharded_gradients = compiled(*sharded)
    # q, k, v, o and their gradients are the only bfloat16 arrays; a table is small, and each shard has all of it.
    assert not re.findall(r"= (bf16\S+) all-gather", compiled.as_text())
    for one, other in zip([sharded_o, *sharded_gradients], [o, *gradients]):
        close(one, other)


@pytest.mark.parametrize("striped", [False, True])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_sequences(strategy, striped):
    count = len(cuda_devices())
    arrays = [*learned_arrays(), *qkv(seq=256 * count)]
    (_, o), gradients = jax.jit(jax.value_and_grad(loss, argnums=tuple(range(6)), has_aux=True))(*arrays)
    mesh = Mesh(np.asarray(cuda_devices()), ("seq",))
    attend = functools.partial(context_parallel_attention, axis_name="seq", strategy=strategy, striped=striped)

    def sharded(slopes, cap, table, q, k, v):
        parts = [stripe(x, count, 1) if striped else x for x in (q, k, v)]

        def local(slopes, cap, table, q, k, v):
            return attend(q, k, v, *learned(slopes, cap, table))

        o = jax.shard_map(local, mesh=mesh, in_specs=(P(), P(), P(), *[P(None, "seq")] * 3), out_specs=P(None, "seq"))(slopes, cap, table, *parts)
        o = unstripe(o, count, 1) if striped else o
        return (o.astype(jnp.float32) ** 2).sum(), o

    (_, sharded_o), sharded_gradients = jax.jit(jax.value_and_grad(sharded, argnums=tuple(range(6)), has_aux=True))(*arrays)
    for one, other in zip([sharded_o, *sharded_gradients], [o, *gradients]):
        close(one, other)
