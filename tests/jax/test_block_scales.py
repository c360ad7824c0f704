"""FP8 arrays with block scales (MXFP8, and scales of rows): against the same call on their values, and calls that are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import scoremod
from scoremod.jax import CUSTOM_CALLS, flex_attention

BATCH, HEADS, HEADS_KV, SEQ, DIM = 2, 4, 2, 70, 64
BLOCK = 32
NAMES = ("descale_q", "descale_k", "descale_v")
# How many scales the sequence and the head dim have: of blocks of the head dim, of blocks of keys, of rows, of heads.
EXTENTS = {"blocks of dims": (SEQ, 2), "blocks of keys": (3, DIM), "rows": (SEQ, 1), "heads": (1, 1)}


def draw(extents, seed=0, dtype=jnp.float8_e4m3fn):
    """Arrays [batch, sequence, heads, dim] with scales in the same order."""
    rng = np.random.default_rng(seed)
    heads = (HEADS, HEADS_KV, HEADS_KV)
    arrays = [jnp.asarray(rng.normal(0, 32, (BATCH, SEQ, count, DIM)), jnp.float32).astype(dtype) for count in heads]
    scales = [jnp.asarray(np.exp2(rng.integers(-7, -3, (BATCH, extents[0], count, extents[1]))), jnp.float32) for count in heads]
    return arrays, dict(zip(NAMES, scales))


def values(array, scales):
    """The values of FP8 numbers with block scales, by their definition."""
    for axis, size in enumerate(array.shape):
        if scales.shape[axis] not in (1, size):
            scales = jnp.take(scales, jnp.arange(size) // BLOCK, axis)
    return array.astype(jnp.float32) * scales


def of_values(arrays, descales):
    return [values(array, scales) for array, scales in zip(arrays, descales.values())]


def score_mod(score, b, h, q_idx, kv_idx):
    return 4 * jnp.tanh(score / 4)


def mask_mod(b, h, q_idx, kv_idx):
    return kv_idx <= q_idx


def expect_close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("extents", EXTENTS.values(), ids=EXTENTS)
def test_it_is_attention_of_the_values(extents):
    arrays, descales = draw(extents)
    o, lse = flex_attention(*arrays, score_mod, mask_mod, **descales, out_dtype=jnp.float32, return_lse=True)
    for found, expected in zip((o, lse), flex_attention(*of_values(arrays, descales), score_mod, mask_mod, return_lse=True)):
        expect_close(found, expected)


@pytest.mark.parametrize("layout", ["BHSD", "SBHD"])
def test_scales_lie_as_their_array_does(layout):
    arrays, descales = draw(EXTENTS["blocks of keys"])
    order = ["BSHD".index(letter) for letter in layout]
    turned = [array.transpose(order) for array in arrays]
    scales = {name: each.transpose(order) for name, each in descales.items()}
    o = flex_attention(*turned, score_mod, **scales, out_dtype=jnp.float32, layout=layout)
    expect_close(o, flex_attention(*arrays, score_mod, **descales, out_dtype=jnp.float32).transpose(order))


@pytest.mark.parametrize("extents", EXTENTS.values(), ids=EXTENTS)
def test_a_cache_has_them_under_a_wider_query(extents):
    arrays, descales = draw(extents)
    arrays[0] = values(arrays[0], descales.pop("descale_q"))
    o = flex_attention(*arrays, score_mod, mask_mod, **descales)
    expected = [arrays[0], *(values(array, scales) for array, scales in zip(arrays[1:], descales.values()))]
    expect_close(o, flex_attention(*expected, score_mod, mask_mod))


@pytest.mark.parametrize("extents", EXTENTS.values(), ids=EXTENTS)
def test_gradients_are_those_by_the_stored_numbers(extents):
    arrays, descales = draw(extents)

    def weighted(o, lse):
        return o.sum() + (lse * jnp.sin(jnp.arange(lse.size)).reshape(lse.shape)).sum()

    def loss(*arrays):
        return weighted(*flex_attention(*arrays, score_mod, **descales, out_dtype=jnp.float32, return_lse=True))

    def loss_of_values(*arrays):
        scaled = [(array, scales) for array, scales in zip(arrays, descales.values())]
        return weighted(*flex_attention(*(values(*each) for each in scaled), score_mod, return_lse=True))

    found = jax.grad(loss, argnums=(0, 1, 2))(*arrays)
    expected = jax.grad(loss_of_values, argnums=(0, 1, 2))(*(array.astype(jnp.float32) for array in arrays))
    for one, other, array in zip(found, expected, arrays):
        assert one.dtype == array.dtype
        # Rounded to bfloat16, then to e4m3, whose smallest number is 2^-9.
        np.testing.assert_allclose(one.astype(jnp.float32), other, rtol=0.08, atol=2**-9)


def test_under_jit_other_scales_compile_nothing():
    arrays, descales = draw(EXTENTS["rows"])
    traces = []

    @jax.jit
    def run(arrays, descales):
        traces.append(1)
        return flex_attention(*arrays, score_mod, **descales, out_dtype=jnp.float32)

    for factor in (1.0, 0.5):
        scaled = {name: factor * each for name, each in descales.items()}
        expect_close(run(arrays, scaled), flex_attention(*of_values(arrays, scaled), score_mod))
    assert len(traces) == 1


def test_exported_calls_have_them_at_any_size():
    known = [export.DisabledSafetyCheck.custom_call(target) for target in CUSTOM_CALLS]
    batch, keys = export.symbolic_shape("b, s")
    attend = lambda q, k, v, of_k, of_v: flex_attention(q, k, v, score_mod, descale_k=of_k, descale_v=of_v)  # noqa: E731
    shapes = [jax.ShapeDtypeStruct((batch, keys, HEADS_KV, DIM), dtype) for dtype in (jnp.float32, jnp.float8_e4m3fn, jnp.float8_e4m3fn)]
    scales = [jax.ShapeDtypeStruct((batch, keys, HEADS_KV, extent), jnp.float32) for extent in (2, 1)]
    made = export.export(jax.jit(attend), disabled_checks=known)(*shapes, *scales)
    for batch, keys in ((1, 33), (BATCH, SEQ)):
        (_, k, v), descales = draw((SEQ, 2))
        k, v, of_k, of_v = (each[:batch, :keys] for each in (k, v, descales["descale_k"], descales["descale_v"][..., :1]))
        q = values(k, of_k)[:, ::-1]
        expect_close(made.call(q, k, v, of_k, of_v), flex_attention(q, values(k, of_k), values(v, of_v), score_mod))


@pytest.mark.parametrize("spec", [("data", None, None, None), (None, None, "data", None)])
def test_shards_agree(spec):
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
    arrays, descales = draw(EXTENTS["blocks of dims"])
    expected = flex_attention(*arrays, score_mod, **descales, out_dtype=jnp.float32)
    place = NamedSharding(mesh, PartitionSpec(*spec))
    sharded = [jax.device_put(array, place) for array in arrays]
    o = jax.jit(lambda *x: flex_attention(*x, score_mod, **descales, out_dtype=jnp.float32))(*sharded)
    expect_close(o, expected)


def test_mapped_calls_share_them():
    arrays, descales = draw(EXTENTS["rows"])
    run = lambda q, k, v: flex_attention(q, k, v, score_mod, **descales, out_dtype=jnp.float32)  # noqa: E731
    several = [jnp.stack([array, array[::-1]]) for array in arrays]
    for found, expected in zip(jax.vmap(run)(*several), (run(*arrays), run(*(array[::-1] for array in arrays)))):
        expect_close(found, expected)


def test_sequences_and_pages_have_those_of_their_tokens():
    arrays, descales = draw(EXTENTS["rows"])
    tokens = [array.reshape(-1, *array.shape[2:]) for array in arrays]
    scales = {name: each.reshape(-1, *each.shape[2:]) for name, each in descales.items()}
    offsets = jnp.array([0, SEQ, 2 * SEQ], jnp.int32)
    expected = flex_attention(*arrays, score_mod, **descales, out_dtype=jnp.float32).reshape(tokens[0].shape)
    expect_close(flex_attention(*tokens, score_mod, q_offsets=offsets, kv_offsets=offsets, **scales, out_dtype=jnp.float32, layout="THD"), expected)
    # A cache whose pages are the batches, in another order.
    query = values(arrays[0], descales.pop("descale_q"))
    turned = {name: each[::-1] for name, each in descales.items()}
    table, lengths = jnp.array([[1], [0]], jnp.int32), jnp.array([SEQ, SEQ - 9], jnp.int32)
    o = flex_attention(query, *(array[::-1] for array in arrays[1:]), score_mod, page_table=table, lengths=lengths, **turned)
    expect_close(o, flex_attention(query, *arrays[1:], score_mod, lengths=lengths, **descales))


@pytest.mark.parametrize("extents", EXTENTS.values(), ids=EXTENTS)
@pytest.mark.parametrize("layout", ["BSHD", "BHSD"])
def test_token_lists_read_those_of_their_tokens(layout, extents):
    arrays, descales = draw(extents)
    order = ["BSHD".index(letter) for letter in layout]
    listed = jnp.asarray(np.random.default_rng(1).integers(0, SEQ, (BATCH, SEQ, 5)).astype(np.int32))
    turned = [each.transpose(order) for each in of_values(arrays, descales)]
    expected = flex_attention(*turned, score_mod, token_list=listed, layout=layout)
    query, *cache = (each.transpose(order) for each in (values(arrays[0], descales["descale_q"]), *arrays[1:]))
    scales = {name: descales[name].transpose(order) for name in NAMES[1:]}
    expect_close(flex_attention(query, *cache, score_mod, token_list=listed, layout=layout, **scales), expected)


def test_scales_that_fit_no_blocks_are_refused():
    arrays, descales = draw(EXTENTS["rows"])
    for shape in ((BATCH, SEQ, HEADS_KV, 3), (BATCH, 2, HEADS_KV, 1), (SEQ, 1)):
        with pytest.raises(scoremod.InvalidArgumentError, match=r"descale_k: expected .*block scales \[2 or 1, 70 or 3 or 1, 2 or 1, 64 or 2 or 1\], found"):
            flex_attention(*arrays, score_mod, **descales | {"descale_k": jnp.ones(shape)})
    several = [jnp.stack([each, each]) for each in arrays]
    scales = {name: jnp.stack([each, each]) for name, each in descales.items()}
    with pytest.raises(scoremod.UnsupportedError, match="descale_q.*jax.lax.map"):
        jax.vmap(lambda q, k, v, d: flex_attention(q, k, v, score_mod, **d, out_dtype=jnp.float32))(*several, scales)
