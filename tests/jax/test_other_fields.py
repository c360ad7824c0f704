"""TransformerEngine's names of fields and arguments: taken where they mean the same, and refused with what to write where they don't."""

import enum

import dense_reference as dense
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scoremod
from scoremod.jax import SequenceDescriptor, flex_attention, fused_attn, zoo
from scoremod.jax.linen import DotProductAttention, MultiHeadAttention
from scoremod.jax.transformer_layer import TransformerLayer

B, S, H, D = 2, 10, 4, 8
Q, K, V = (dense.random_array(i, (B, S, H, D)) for i in range(3))
KG, VG = K[:, :, :2], V[:, :, :2]
THEIRS = {"head_dim": D, "num_attention_heads": H, "num_gqa_groups": 2}


class AttnMaskType(enum.Enum):
    NO_MASK = 0
    PADDING_CAUSAL_MASK = 3


class AttnBiasType(enum.Enum):
    POST_SCALE_BIAS = 1


class AttnSoftmaxType(enum.Enum):
    LEARNABLE_SOFTMAX = 2


def test_a_ported_module_must_say_its_mask():
    """Without one it is causal in TransformerEngine, and everything is attended to here."""
    for module in (DotProductAttention, MultiHeadAttention):
        with pytest.raises(
            scoremod.InvalidArgumentError, match='attn_mask_type: expected one beside num_attention_heads, .*"causal" without one, here "no_mask"'
        ):
            module(**THEIRS)
    with pytest.raises(scoremod.InvalidArgumentError, match="attn_mask_type: expected one beside num_attention_heads"):
        TransformerLayer(num_attention_heads=H)


def test_fields_that_mean_the_same():
    fields = {"scale_factor": 0.5, "qkv_layout": "bshd_bshd_bshd", "float32_logits": True, "max_segments_per_seq": 4, "attn_bias_type": "post_scale_bias"}
    module = DotProductAttention(**THEIRS, attn_mask_type="causal", **fields, context_checkpoint_name="context", window_size=(-1, -1))
    bias = dense.random_array(7, (1, H, S, S))
    want = flex_attention(Q, KG, VG, lambda s, b, h, i, j: s + bias[0, h, i, j], zoo.causal(), scale=0.5)
    np.testing.assert_array_equal(module.apply({}, Q, KG, VG, bias=bias), want)
    swapped = DotProductAttention(attn_mask_type=AttnMaskType.NO_MASK, transpose_batch_sequence=True, num_attention_heads=H)
    turned = [jnp.swapaxes(x, 0, 1) for x in (Q, K, V)]
    np.testing.assert_allclose(jnp.swapaxes(swapped.apply({}, *turned), 0, 1), flex_attention(Q, K, V), rtol=1e-5, atol=1e-6)
    assert module.clone().head_dim == D  # as Flax copies modules
    x = Q.reshape(B, S, -1)
    ours, theirs = MultiHeadAttention(num_heads=H, num_kv_heads=2, attn_mask_type="causal"), MultiHeadAttention(**THEIRS, attn_mask_type="causal")
    variables = ours.init(jax.random.key(0), x)
    np.testing.assert_array_equal(ours.apply(variables, x), theirs.apply(variables, x))
    layer = TransformerLayer(num_attention_heads=H, mlp_hidden_size=64, self_attn_mask_type="causal", layernorm_epsilon=1e-5)
    assert (layer.num_heads, layer.mlp_features, layer.attn_mask_type, layer.epsilon) == (H, 64, "causal", 1e-5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"context_parallel_axis": "seq"}, "context_parallel_axis: .*context_parallel_attention"),
        ({"qkv_layout": "thd_thd_thd"}, 'attn_mask_type: expected a type with padding .*layout="THD", q_offsets='),
        ({"qkv_layout": "bhds_bhds_bhds"}, "qkv_layout: expected one of bhsd_bhsd_bhsd, .*give query, key and value"),
        ({"num_attention_headz": 4}, "num_attention_headz: the module.* expected no such argument"),
        ({"use_bias": True}, "use_bias: .*add biases in the modules that make the projections"),
    ],
)
def test_others_say_what_to_write(fields, message):
    with pytest.raises(scoremod.InvalidArgumentError, match=message):
        DotProductAttention(attn_mask_type="causal", **fields)


def test_sizes_are_held_to():
    with pytest.raises(scoremod.InvalidArgumentError, match="num_heads: expected arrays of 8, as the field says, found 4 in layout BSHD"):
        DotProductAttention(num_attention_heads=8, attn_mask_type="causal").apply({}, Q, K, V)


def test_the_function_with_arguments_in_their_order():
    lengths, bias, offset = jnp.array([7, 10]), dense.random_array(7, (1, H, S, S)), dense.random_array(8, (1, H, 1, 1))
    found = fused_attn(
        (Q, jnp.stack([K, V], axis=2)), bias, SequenceDescriptor.from_seqlens(lengths), None, AttnBiasType.POST_SCALE_BIAS,
        AttnMaskType.PADDING_CAUSAL_MASK, "bshd_bs2hd", AttnSoftmaxType.LEARNABLE_SOFTMAX, 0.5, 0.0, True, softmax_offset=offset,
    )  # fmt: skip
    want = flex_attention(Q, K, V, lambda s, b, h, i, j: s + bias[0, h, i, j], zoo.causal(), scale=0.5, lengths=(lengths, lengths), sink=offset.reshape(-1))
    np.testing.assert_allclose(found, want, rtol=1e-6)


def test_dropout_and_callbacks_of_the_function():
    key, plain = jax.random.key(3), ("no_bias", "no_mask", "bshd_bshd_bshd", "vanilla", None)
    attend = lambda *rest, **options: fused_attn((Q, K, V), None, None, key, *plain, *rest, **options)  # noqa: E731
    np.testing.assert_array_equal(attend(0.5, True), flex_attention(Q, K, V, dropout_rate=0.5, dropout_key=key))
    np.testing.assert_array_equal(attend(0.5, False), flex_attention(Q, K, V))
    doubled = attend(0.0, True, score_mod=lambda graph, score, tensors: graph.mul(score, tensors["x"]), score_mod_tensors={"x": 2.0})
    np.testing.assert_allclose(doubled, flex_attention(Q, K, V, lambda s, *_: 2 * s), rtol=1e-6)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"qkv": Q}, "qkv: expected a tuple of one, two or three arrays"),
        ({"softmax_type": "learnable"}, "softmax_offset: expected one exactly with a learnable softmax"),
        ({"context_checkpoint_name": 3}, "context_checkpoint_name: expected a text, found int"),
        ({"dropout_probability": 0.1, "is_training": True}, "seed: expected a key"),
        ({"attn_mask_type": "diagonal"}, "attn_mask_type: expected"),
    ],
)
def test_mistakes_of_the_function(changed, message):
    arguments = {
        "qkv": (Q, K, V), "bias": None, "sequence_descriptor": None, "seed": None, "attn_bias_type": "no_bias", "attn_mask_type": "causal",
        "qkv_layout": "bshd_bshd_bshd", "softmax_type": "vanilla", "scaling_factor": None, "dropout_probability": 0.0, "is_training": False,
    }  # fmt: skip
    with pytest.raises(scoremod.InvalidArgumentError, match=message):
        fused_attn(**arguments | changed)
