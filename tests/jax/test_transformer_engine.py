"""TransformerEngine's module with its names, order and defaults, against dense attention in float64."""

import os

import dense_reference as dense
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scoremod
from scoremod.jax import zoo
from scoremod.jax import transformer_engine as te

SEED = int(os.environ.get("SCOREMOD_TEST_SEED", 0)) or int.from_bytes(os.urandom(4), "little")
B, S, H, G, D = 2, 10, 4, 2, 8
CAUSAL = lambda b, h, i, j: i >= j  # noqa: E731


def arrays(rng, groups=G):
    return [jnp.asarray(rng.standard_normal((B, S, heads, D)), jnp.float32) for heads in (H, groups, groups)]


def turned(arrays):
    return [jnp.swapaxes(x, 0, 1) for x in arrays]


def assert_is_dense(found, arrays, *mods, **options):
    attend = lambda *x: dense.attention(*x, *mods, **options)  # noqa: E731
    dense.assert_close(found, attend(*arrays), dense.in_float64(attend, *arrays))


def test_a_ported_module_is_causal_and_takes_positions_first():
    print(f"SCOREMOD_TEST_SEED={SEED}")
    qkv = arrays(np.random.default_rng(SEED))
    module = te.DotProductAttention(D, H, G)
    assert_is_dense(jnp.swapaxes(module.apply({}, *turned(qkv)), 0, 1), qkv, None, CAUSAL)
    flat = te.DotProductAttention(D, H, G, transpose_batch_sequence=False)
    assert_is_dense(flat.apply({}, *qkv), qkv, None, CAUSAL)
    assert_is_dense(flat.clone(attn_mask_type=te.AttnMaskType.NO_MASK).apply({}, *qkv), qkv)
    with pytest.raises(AssertionError):  # as it would be with another default
        assert_is_dense(flat.apply({}, *qkv), qkv)


def test_descriptors_biases_and_packed_arrays_come_as_there():
    rng = np.random.default_rng(SEED + 1)
    print(f"SCOREMOD_TEST_SEED={SEED}")
    q, k, v = qkv = arrays(rng, H)
    lengths, bias = jnp.asarray(rng.integers(1, S + 1, B)), jnp.asarray(rng.standard_normal((1, H, S, S)), jnp.float32)
    descriptor = te.SequenceDescriptor.from_seqlens(lengths)
    module = te.DotProductAttention(
        D, H, attn_mask_type="padding_causal", qkv_layout=te.QKVLayout.BSHD_BS2HD, scale_factor=0.3, transpose_batch_sequence=False, attention_dropout=0.5
    )
    found = module.apply({}, q, jnp.stack([k, v], 2), None, descriptor, bias, deterministic=True)
    within = lambda b, h, i, j: (i >= j) & (i < lengths[b]) & (j < lengths[b])  # noqa: E731
    assert_is_dense(found, qkv, lambda s, b, h, i, j: s + bias[0, h, i, j], within, scale=0.3)
    dropped = module.apply({}, q, jnp.stack([k, v], 2), None, descriptor, bias, rngs={"dropout": jax.random.key(SEED)})
    assert np.abs(dropped - found).max() > 0.01  # in training by default


def test_a_softmax_offset_and_callbacks_have_gradients():
    rng = np.random.default_rng(SEED + 2)
    print(f"SCOREMOD_TEST_SEED={SEED}")
    qkv = arrays(rng)
    cap = jnp.float32(rng.uniform(0.5, 2))
    module = te.DotProductAttention(
        D, H, G, softmax_type="learnable", transpose_batch_sequence=False,
        score_mod=lambda graph, score, tensors: graph.mul(a=graph.tanh(input=graph.div(a=score, b=tensors["cap"])), b=tensors["cap"]),
    )  # fmt: skip
    offset = jnp.asarray(rng.standard_normal((1, H, 1, 1)), jnp.float32)
    assert module.init(jax.random.key(0), *qkv, score_mod_tensors={"cap": cap})["params"]["softmax_offset"].shape == offset.shape

    def loss(cap, offset, *qkv):
        return (module.apply({"params": {"softmax_offset": offset}}, *qkv, score_mod_tensors={"cap": cap}) ** 2).sum()

    def plain(cap, offset, q, k, v):
        o, lse = dense.attention_and_lse(q, k, v, lambda s, b, h, i, j: cap * jnp.tanh(s / cap), CAUSAL)
        share = jax.nn.sigmoid(lse - offset.reshape(1, H, 1))
        return ((o * jnp.swapaxes(share, 1, 2)[..., None]) ** 2).sum()

    found, known = (jax.grad(each, argnums=range(5))(cap, offset, *qkv) for each in (loss, plain))
    dense.assert_close(found, known, dense.in_float64(jax.grad(plain, argnums=range(5)), cap, offset, *qkv), common_scale=True)


@pytest.mark.parametrize(
    ("fields", "call", "message"),
    [
        ({"context_checkpoint_name": 3}, {}, "context_checkpoint_name: expected a text, found int"),
        ({"context_parallel_axis": "seq"}, {}, "context_parallel_axis: .*context_parallel_attention"),
        ({"num_attention_heads": 8}, {}, "num_heads: expected arrays of 8, as the field says, found 4"),
        ({"num_gqa_groups": None}, {}, "num_kv_heads: expected arrays of 4, as the field says, found 2"),
        ({"attn_mask_type": "diagonal"}, {}, "attn_mask_type: expected"),
        ({}, {"mask": jnp.zeros((B, 1, S, S), bool)}, "mask: expected none, found one; give sequence_descriptor="),
        ({"attn_mask_type": "padding"}, {"sequence_descriptor": jnp.zeros((B, 1, S, S), bool)}, "expected a scoremod.jax.SequenceDescriptor, found"),
    ],
)
def test_mistakes(fields, call, message):
    fields = {"head_dim": D, "num_attention_heads": H, "num_gqa_groups": G, "transpose_batch_sequence": False} | fields
    with pytest.raises(scoremod.InvalidArgumentError, match=message):
        te.DotProductAttention(**fields).apply({}, *arrays(np.random.default_rng(0)), **call)


def test_own_fields_come_beside():
    qkv = arrays(np.random.default_rng(SEED + 3))
    module = te.DotProductAttention(D, H, G, transpose_batch_sequence=False, mask_mod=zoo.sliding_window(3), backend="cpu", deterministic_gradients=True)
    window = zoo.sliding_window(3)
    assert_is_dense(module.apply({}, *qkv), qkv, None, lambda b, h, i, j: window(b, h, i, j) & (i >= j))
    with pytest.raises(scoremod.UnsupportedError):
        module.clone(backend="kernels").apply({}, *qkv)
