"""FP8 key and value under a wider query: against attention to the scaled values in float64, and calls that are refused."""

import os
import secrets

import dense_reference as dense
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from jax import export
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import scoremod
from scoremod.jax import CUSTOM_CALLS, append_to_pages, explain, flex_attention
from scoremod.jax import linen as scoremod_linen
from scoremod.jax import nnx as scoremod_nnx

SEED = int(os.environ.get("SCOREMOD_TEST_SEED") or secrets.randbelow(2**31))
BATCH, HEADS, HEADS_KV, SEQ, DIM = 2, 4, 2, 24, 16
FORMATS = [jnp.float8_e4m3fn, jnp.float8_e5m2]
SCALES = {"descale_k": 0.06, "descale_v": jnp.asarray([0.03, 0.5], jnp.float32)}


@pytest.fixture
def seed():
    print(f"SCOREMOD_TEST_SEED={SEED}")
    return SEED


def draw(dtype=jnp.bfloat16, dtype_kv=FORMATS[0], seed=0):
    rng = np.random.default_rng(seed)
    query = jnp.asarray(rng.normal(0, 1, (BATCH, SEQ, HEADS, DIM)), dtype)
    return [query, *(jnp.asarray(rng.normal(0, 32, (BATCH, SEQ, HEADS_KV, DIM)), dtype_kv) for _ in range(2))]


def numbers(arrays, scales=SCALES, dtype=jnp.float32):
    """The values."""
    query, key, value = arrays
    factors = (jnp.reshape(jnp.asarray(scales[name], dtype), (-1, 1)) for name in ("descale_k", "descale_v"))
    return [query.astype(dtype), *(each.astype(dtype) * factor for each, factor in zip((key, value), factors))]


def score_mod(score, b, h, q_idx, kv_idx):
    return 4 * jnp.tanh(score / 4)


def causal(b, h, q_idx, kv_idx):
    return kv_idx <= q_idx


def truth_of(arrays, scales=SCALES, mask_mod=causal):
    """(o, lse) in float64, of the stored numbers."""
    with jax.enable_x64(True):
        return [np.asarray(each) for each in dense.attention_and_lse(*numbers(arrays, scales, jnp.float64), score_mod, mask_mod)]


def assert_right(found, truth, dtype):
    """(o, lse): o rounded once, from sums in float32."""
    band = (float(jnp.finfo(dtype).eps) + 1e-5) * np.abs(truth[0]).max(initial=0)
    assert found[0].dtype == dtype
    np.testing.assert_allclose(np.asarray(found[0], np.float64), truth[0], rtol=0, atol=band)
    np.testing.assert_allclose(found[1], truth[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype_kv", FORMATS)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16, jnp.bfloat16])
def test_it_is_attention_of_the_numbers(dtype, dtype_kv):
    arrays = draw(dtype, dtype_kv)
    o, lse, largest = flex_attention(*arrays, score_mod, causal, **SCALES, return_lse=True, return_max_logit=True)
    assert_right((o, lse), truth_of(arrays), dtype)
    np.testing.assert_allclose(largest, flex_attention(*numbers(arrays), score_mod, causal, return_max_logit=True)[1], rtol=1e-5)


def test_other_scales_give_other_results():
    """A negative control: the bands above would notice a scale of the wrong head, and one that was left out."""
    arrays = draw(jnp.float32)
    truth = truth_of(arrays)
    for wrong in ({"descale_v": SCALES["descale_v"][::-1]}, {"descale_v": 0.03}, {"descale_k": 0.061}):
        found = flex_attention(*arrays, score_mod, causal, **(SCALES | wrong), return_lse=True)
        with pytest.raises(AssertionError):
            assert_right(found, truth, jnp.float32)


def random_batch(rng):
    """(query, pools, places, scales): a mixed batch over shuffled pages of NaN where no sequence has a key."""
    batch, page, width, heads_kv, group = (int(rng.integers(*each)) for each in ((1, 5), (1, 5), (1, 4), (1, 4), (1, 3)))
    dim_qk, dim_v = (int(rng.choice([4, 8, 16])) for _ in range(2))
    counts, lengths = rng.integers(0, 6, batch), rng.integers(0, page * width + 1, batch)
    pages = batch * width + 1
    table = rng.permutation(pages)[: batch * width].reshape(batch, width)
    used = np.arange(width) * page < lengths[:, None]
    pools = [rng.normal(0, 40, (pages, page, heads_kv, dim)).astype(np.float32) for dim in (dim_qk, dim_v)]
    for pool in pools:
        pool[np.setdiff1d(np.arange(pages), table[used])] = np.nan
    dtype, dtype_kv = rng.choice([jnp.float32, jnp.float16, jnp.bfloat16]), FORMATS[rng.integers(2)]
    query = jnp.asarray(rng.standard_normal((max(int(counts.sum()), 1), heads_kv * group, dim_qk)), dtype)
    scales = {name: np.float32(2.0 ** rng.uniform(-9, 1, (heads_kv,))) for name in ("descale_k", "descale_v")}
    places = {"q_offsets": np.cumsum([0, *counts]), "page_table": np.where(used, table, pages + 7), "lengths": lengths}
    return query, [jnp.asarray(pool, dtype_kv) for pool in pools], {name: each.astype(np.int32) for name, each in places.items()}, scales


def one_by_one(query, pools, places, scales):
    """(o, lse) of each sequence in float64, its last query at its last key."""
    query = np.asarray(query, np.float64)
    key, value = (np.asarray(pool, np.float64) * scales[name][:, None].astype(np.float64) for pool, name in zip(pools, ("descale_k", "descale_v")))
    group, page = query.shape[1] // key.shape[2], key.shape[1]
    o, lse = np.zeros((*query.shape[:2], value.shape[3])), np.full(query.shape[:2], -np.inf)
    for b, length in enumerate(places["lengths"]):
        first, end = places["q_offsets"][b : b + 2]
        if first == end or length == 0:
            continue
        of_pages = places["page_table"][b, : -(-length // page)]
        k, v = (np.repeat(pool[of_pages].reshape(-1, *pool.shape[2:])[:length], group, 1) for pool in (key, value))
        i, j = np.arange(end - first)[:, None] + length - (end - first), np.arange(length)
        scores = 4 * np.tanh(np.einsum("qhd,khd->hqk", query[first:end], k) / np.sqrt(query.shape[2]) / 4)
        terms = np.where(i >= j, np.exp(scores), 0)
        total = terms.sum(-1)
        has_keys = (total > 0).T
        o[first:end] = np.where(has_keys[..., None], np.einsum("hqk,khd->qhd", terms / np.where(total > 0, total, 1)[..., None], v), 0)
        lse[first:end] = np.where(has_keys, np.log(np.where(total > 0, total, 1)).T, -np.inf)
    return o, lse


@pytest.mark.parametrize("number", range(6))
def test_random_mixed_batches(number, seed):
    query, pools, places, scales = random_batch(np.random.default_rng([seed, number]))

    @jax.jit
    def attend(query, pools, places, scales):
        options = dict(layout="THD", max_length=max(query.shape[0], 1), return_lse=True)
        return flex_attention(query, *pools, score_mod, "causal_bottom_right", **options, **places, **scales)

    truth = one_by_one(query, pools, places, scales)
    assert_right(attend(query, pools, places, scales), truth, query.dtype)
    found = flex_attention(query, *pools, score_mod, "causal_bottom_right", layout="THD", return_lse=True, **places, **scales)
    assert_right(found, truth, query.dtype)


def test_pages_that_are_gathered():
    """Pools of unlike numbers of pages are no field of a problem."""
    query, key, value = draw(jnp.float32)
    pools = [each.reshape(BATCH * 3, 8, HEADS_KV, DIM) for each in (key, value)]
    pools[1] = jnp.concatenate([pools[1], pools[1][:1]])
    options = dict(page_table=jnp.arange(6).reshape(2, 3), lengths=jnp.full((2,), SEQ), return_lse=True)
    assert_right(flex_attention(query, *pools, score_mod, causal, **SCALES, **options), truth_of([query, key, value]), jnp.float32)


def test_what_is_appended_is_divided_by_the_scale():
    query, key, value = draw(jnp.float32)
    pools = [jnp.zeros((BATCH * 3, 8, HEADS_KV, DIM), FORMATS[0]) for _ in range(2)]
    table, lengths = jnp.arange(6).reshape(2, 3), jnp.full((2,), SEQ)
    new = [(x / jnp.reshape(jnp.asarray(scale), (-1, 1))).astype(FORMATS[0]) for x, scale in zip(numbers([query, key, value])[1:], SCALES.values())]
    quantized = jax.jit(lambda *arrays: append_to_pages(*arrays, table, lengths, **SCALES))(*pools, *numbers([query, key, value])[1:])
    pools = append_to_pages(*pools, *new, table, lengths)
    for each, pool in zip(quantized, pools):
        np.testing.assert_array_equal(each.astype(jnp.float32), pool.astype(jnp.float32))
    found = flex_attention(query, *pools, score_mod, causal, **SCALES, page_table=table, lengths=lengths, return_lse=True)
    assert_right(found, truth_of([query, key, value]), jnp.float32)


def test_what_is_appended_saturates():
    pools, new = [jnp.zeros((1, 2, 2, 4), FORMATS[0])] * 2, [jnp.full((1, 1, 2, 4), x) for x in (jnp.inf, -3.0)]
    places = jnp.zeros((1, 1), int), jnp.ones(1, int)
    keys, values = append_to_pages(*pools, *new, *places, descale_k=0.5, descale_v=jnp.asarray([1.5, 1e-3]))
    assert (keys[0, 0] == 448).all() and (values[0, 0, 0] == -2).all() and (values[0, 0, 1] == -448).all() and not keys[0, 1].any()
    with pytest.raises(scoremod.InvalidArgumentError, match="found float32; give descale_k"):
        append_to_pages(*pools, *new, *places)
    for wrong in (jnp.ones((1, 1, 3, 4)), jnp.ones((1, 1, 1, 4)), jnp.ones(4)):
        with pytest.raises(scoremod.InvalidArgumentError, match="key: expected"):
            append_to_pages(*pools, wrong, new[1], *places, descale_k=jnp.ones(2), descale_v=1.0)
    with pytest.raises(scoremod.InvalidArgumentError, match="descale_k: expected none but for FP8 pages"):
        append_to_pages(*(x.astype(jnp.float32) for x in pools), *new, *places, descale_k=0.5)


def test_sinks_lengths_dropout_and_sequences():
    arrays = draw(jnp.float32, FORMATS[1])
    sink = jnp.linspace(-1, 1, HEADS)
    options = dict(sink=sink, lengths=jnp.asarray([5, SEQ]), dropout_rate=0.25, dropout_key=jax.random.key(3), return_lse=True)
    for found, expected in zip(flex_attention(*arrays, **SCALES, **options), flex_attention(*numbers(arrays), **options), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-5)
    tokens = [array.reshape(BATCH * SEQ, -1, DIM) for array in arrays]
    options = dict(q_offsets=jnp.asarray([0, 11, BATCH * SEQ]), layout="THD", sink=sink)
    np.testing.assert_allclose(flex_attention(*tokens, **SCALES, **options), flex_attention(*numbers(tokens), **options), rtol=2e-5, atol=1e-5)


def test_scales_are_arguments_of_a_jitted_function():
    arrays, traces = draw(), []

    @jax.jit
    def attend(q, k, v, descale_v):
        traces.append(None)
        return flex_attention(q, k, v, descale_k=0.06, descale_v=descale_v)

    for scale in ([0.02, 0.3], [0.5, 0.1]):
        scale = jnp.asarray(scale, jnp.float32)
        np.testing.assert_array_equal(attend(*arrays, scale), flex_attention(*arrays, descale_k=0.06, descale_v=scale))
    assert len(traces) == 1


def test_exported_with_symbolic_sizes():
    def attend(q, k, v, scale, slopes):
        mod = lambda score, b, h, q_idx, kv_idx: score_mod(score, b, h, q_idx, kv_idx) + slopes[h] * kv_idx  # noqa: E731
        return flex_attention(q, k, v, mod, causal, descale_k=0.06, descale_v=scale, return_lse=True)

    b, s, t = export.symbolic_shape("b, s, t")
    shapes = [((b, s, HEADS, DIM), jnp.bfloat16), *[((b, t, HEADS_KV, DIM), FORMATS[0])] * 2, ((HEADS_KV,), jnp.float32), ((HEADS,), jnp.float32)]
    checks = [export.DisabledSafetyCheck.custom_call(target) for target in CUSTOM_CALLS]
    exported = export.export(jax.jit(attend), disabled_checks=checks)(*(jax.ShapeDtypeStruct(*each) for each in shapes))
    exported = export.deserialize(exported.serialize())
    slopes = jnp.linspace(0, 1, HEADS)
    for batch, queries, keys in [(1, 1, 1), (2, 17, 9), (1, 5, SEQ)]:
        query, key, value = draw()
        arrays = query[:batch, :queries], key[:batch, :keys], value[:batch, :keys]
        for found, expected in zip(exported.call(*arrays, SCALES["descale_v"], slopes), attend(*arrays, SCALES["descale_v"], slopes), strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("heads_kv", [4, 2, 1])
def test_shards_have_their_own_heads_scales(heads_kv):
    query, key, value = (jnp.tile(each, (1, 1, 2, 1)) for each in draw(jnp.float32))
    key, value = (each[:, :, :heads_kv] for each in (key, value))
    scales = {"descale_k": jnp.linspace(0.02, 0.1, heads_kv), "descale_v": jnp.linspace(0.5, 0.03, heads_kv)}
    expected = flex_attention(query, key, value, score_mod, causal, **scales)
    attend = jax.jit(lambda q, k, v: flex_attention(q, k, v, score_mod, causal, **scales))
    for kind in (AxisType.Auto, AxisType.Explicit):
        mesh = Mesh(np.asarray(jax.devices()[:4]).reshape(2, 2), ("x", "y"), axis_types=(kind,) * 2)
        for axes in (("x", "y"), (None, "y"), (None, ("x", "y"))):
            of_keys = axes if heads_kv % 4 == 0 or (heads_kv == 2 and axes[1] == "y") else (axes[0], None)
            specs = PartitionSpec(axes[0], None, axes[1]), *[PartitionSpec(of_keys[0], None, of_keys[1])] * 2
            with jax.set_mesh(mesh):
                sharded = [jax.device_put(each, NamedSharding(mesh, spec)) for each, spec in zip((query, key, value), specs)]
                found = attend(*sharded)
            np.testing.assert_array_equal(found, expected, err_msg=f"{kind} {axes}")


def test_mapped_calls_share_their_scales():
    arrays = [jnp.stack([array, array[::-1]]) for array in draw()]
    found = jax.vmap(lambda q, k, v: flex_attention(q, k, v, score_mod, **SCALES))(*arrays)
    for i in range(2):
        np.testing.assert_array_equal(found[i], flex_attention(*(array[i] for array in arrays), score_mod, **SCALES))
    with pytest.raises(scoremod.UnsupportedError, match="expected the same in all calls of a jax.vmap"):
        jax.vmap(lambda q, k, v, scale: flex_attention(q, k, v, descale_k=scale, descale_v=1.0))(*arrays, jnp.ones(2))


def test_modules():
    arrays = draw()
    expected = flex_attention(*arrays, score_mod, causal, **SCALES)
    module = scoremod_linen.DotProductAttention(score_mod=score_mod, attn_mask_type="causal")
    assert isinstance(module, nn.Module)
    np.testing.assert_array_equal(module.apply({}, *arrays, **SCALES), expected)
    module = scoremod_nnx.DotProductAttention(score_mod=score_mod, attn_mask_type="causal")
    assert isinstance(module, nnx.Module)
    np.testing.assert_array_equal(module(*arrays, **SCALES), expected)


def test_explain_names_the_dtype():
    query, key, value = draw()
    found = explain(query, key, value)
    assert found.problem["dtype"] == "bf16" and found.problem["dtype_kv"] == "e4m3" and not found.problem["backward"]
    assert found.answers()["cpu"] == ()
    found = explain(query, *(each.reshape(6, 8, HEADS_KV, DIM) for each in (key, value)), page_table=jnp.zeros((2, 3), int), lengths=jnp.full((2,), 20))
    assert found.problem["dtype_kv"] == "e4m3" and found.answers()["cpu"] == ()


def test_without_keys():
    query, key, value = draw()
    o, lse = flex_attention(query, key[:, :0], value[:, :0], **SCALES, return_lse=True)
    assert o.dtype == query.dtype and not o.any() and jnp.isneginf(lse).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"descale_k": None}, "descale_k: expected the factor of an FP8 key and value under a wider query, found none; give 1.0 if there is none"),
        ({"descale_v": None}, "descale_v: expected the factor"),
        ({"descale_q": 1.0}, "descale_q: expected none beside a query of bfloat16"),
        ({"scale_o": 1.0}, "scale_o: expected none beside a query of bfloat16"),
        ({"scale_dk": 1.0}, "scale_dk: expected none beside a query of bfloat16"),
        ({"out_dtype": jnp.float32}, "out_dtype: expected none beside a query of bfloat16"),
        ({"descale_k": 0.0}, "descale_k: expected a positive finite number, found 0.0"),
        ({"descale_k": jnp.ones(3)}, "descale_k: expected a positive number or floats of one element, or of one for each of 2 KV heads"),
        ({"descale_k": jnp.ones((2, 1))}, "descale_k: expected a positive number or floats"),
        ({"descale_k": jnp.ones(2, int)}, "descale_k: expected a positive number or floats"),
    ],
)
def test_mistakes(options, message):
    with pytest.raises(scoremod.InvalidArgumentError, match=message):
        flex_attention(*draw(), **(SCALES | options))


def test_a_negative_scale_is_refused_where_it_runs():
    with pytest.raises(Exception, match="'descale_v': expected a positive finite factor, found -1"):
        flex_attention(*draw(), descale_k=1.0, descale_v=jnp.asarray([1.0, -1.0])).block_until_ready()


def test_dtypes_that_do_not_go_together():
    query, key, value = draw()
    few = query[:, :, :HEADS_KV]
    for arrays in ((query, key, value.astype(FORMATS[1])), (query, key, value.astype(jnp.float32)), (key, few, few), (query, key, few)):
        with pytest.raises(scoremod.InvalidArgumentError, match="or key and value of one FP8 dtype under a wider query"):
            flex_attention(*arrays, **({} if arrays[0] is key else SCALES))
    with pytest.raises(scoremod.UnsupportedError, match="expected query, key and value of 16 bits or more on XLA, found float8_e4m3fn"):
        flex_attention(query, key, value, **SCALES, backend="xla")


def test_gradients_are_refused_by_name():
    query, key, value = draw()
    slopes = jnp.ones(HEADS)

    def loss(query, value, slopes, **options):
        mod = lambda s, b, h, i, j: s * slopes[h]  # noqa: E731
        return flex_attention(query, key, value, mod, **SCALES, **options).astype(jnp.float32).sum()

    for wrap in (lambda f: f, jax.jit):
        with pytest.raises(scoremod.UnsupportedError, match=r"query: expected no gradient in a call whose key and value are an FP8 cache.*query\)"):
            jax.grad(wrap(loss))(query, value, slopes)
        with pytest.raises(scoremod.UnsupportedError, match="value: expected no gradient in a call"):
            jax.grad(wrap(loss), 1)(query, value, slopes)
        with pytest.raises(scoremod.UnsupportedError, match="a captured array: expected no gradient in a call"):
            jax.grad(wrap(loss), 2)(query, value, slopes)
        found = jax.grad(wrap(lambda query, value, slopes: loss(jax.lax.stop_gradient(query), value, slopes) + slopes.sum()), 0)(query, value, slopes)
        assert not found.any()
    paged = lambda query: flex_attention(  # noqa: E731
        query, key, value, page_table=jnp.arange(2)[:, None], lengths=jnp.full((2,), SEQ), **SCALES
    )
    with pytest.raises(scoremod.UnsupportedError, match="query: expected no gradient in a call"):
        jax.vjp(paged, query)
    with pytest.raises(scoremod.UnsupportedError, match="cannot differentiate flex_attention in forward mode"):
        jax.jvp(paged, (query,), (query,))


def test_each_token_gets_a_scale_of_its_own(seed):
    choose = np.random.default_rng(seed)
    shape = (3, 16, 2, 32)
    table, lengths = jnp.asarray([[2, 0]]), jnp.asarray([20])
    new = [jnp.asarray(choose.normal(size=(1, 20, 2, 32)) * 10 ** choose.uniform(-3, 3, (1, 20, 2, 1)), jnp.float32) for _ in range(2)]
    pools, scales = [jnp.zeros(shape, jnp.float8_e4m3fn) for _ in range(2)], [jnp.zeros((*shape[:3], 1)) for _ in range(2)]
    wide = append_to_pages(*(jnp.zeros(shape) for _ in range(2)), *new, table, lengths)

    @jax.jit
    def append(pools, scales):
        return append_to_pages(*pools, *new, table, lengths, descale_k=scales[0], descale_v=scales[1])

    found = append(pools, scales)
    assert len(found) == 4
    for pool, scale, expected in zip(found[:2], found[2:], wide, strict=True):
        most = jnp.abs(expected).max(-1, keepdims=True)
        assert (jnp.abs(pool.astype(jnp.float32) * scale - expected) <= 2**-4 * most).all()
    query = jnp.asarray(choose.normal(size=(1, 1, 4, 32)), jnp.float32)
    options = {"page_table": table, "lengths": lengths}
    o = flex_attention(query, *found[:2], **options, descale_k=found[2], descale_v=found[3])
    plain = flex_attention(query, *(pool.astype(jnp.float32) * scale for pool, scale in zip(found[:2], found[2:], strict=True)), **options)
    np.testing.assert_allclose(o, plain, rtol=1e-5, atol=1e-6)
    with pytest.raises(scoremod.InvalidArgumentError, match=r"descale_v: expected a scale of each position of the pages, float32 of shape \(3, 16, 2, 1\)"):
        append_to_pages(*pools, *new, table, lengths, descale_k=0.5, descale_v=scales[1][:, :8])
