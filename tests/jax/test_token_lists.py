"""token_list=: each query attends to the keys that its row of a list names, against a dense computation that gathers them by plain indexing."""

import functools
import math
import os
import secrets

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scoremod
import scoremod.jax
from jax import export
from scoremod.jax import CUSTOM_CALLS, explain, flex_attention, support

SEED = int(os.environ.get("SCOREMOD_TEST_SEED") or secrets.randbelow(2**31))
# batch, heads, KV heads, queries, tokens, entries, dim, dim of values
SHAPES = {"gqa": (2, 4, 2, 3, 50, 12, 16, 8), "mha": (3, 2, 2, 1, 9, 30, 8, 8), "mqa, many": (1, 8, 1, 17, 200, 64, 32, 32)}


@pytest.fixture
def random():
    print(f"SCOREMOD_TEST_SEED={SEED}")
    return np.random.default_rng(SEED)


def drawn(random, shape, dtype=jnp.float32):
    """(q, k, v, list): a list with repeats, with rows of few keys, with entries of none between others, and with one row of none."""
    batch, heads, heads_kv, queries, tokens, entries, dim, dim_v = shape
    q, k, v = (
        jnp.asarray(random.standard_normal(size), dtype)
        for size in ((batch, queries, heads, dim), (batch, tokens, heads_kv, dim), (batch, tokens, heads_kv, dim_v))
    )
    listed = random.integers(-(tokens // 4), tokens, (batch, queries, entries))
    listed[..., 3] = listed[..., 0]
    listed[:, 0, entries // 2 :] = -1
    listed[-1, -1] = -1
    return q, k, v, listed


def modified(bias, slopes):
    """A soft cap, a table of keys, and what depends on positions, batches and heads."""

    def score_mod(score, b, h, q_idx, kv_idx):
        return 5 * jnp.tanh(score / 5) + bias[kv_idx] + slopes[b, h] * (kv_idx - q_idx)

    return score_mod


def kept(b, h, q_idx, kv_idx):
    return (kv_idx + 2 * q_idx + h + b) % 5 != 1


def dense(q, k, v, listed, score_mod=None, mask_mod=None, sink=None):
    """(o, lse) in the arrays' dtype: the listed keys of each query, in memory of their own."""
    k, v = (jnp.repeat(x, q.shape[2] // k.shape[2], axis=2) for x in (k, v))
    listed = jnp.broadcast_to(jnp.asarray(listed), (q.shape[0], *listed.shape[1:]))
    b, i, h = (jnp.arange(n).reshape(shape) for n, shape in zip(q.shape, ((-1, 1, 1, 1), (1, 1, -1, 1), (1, -1, 1, 1))))
    j = jnp.maximum(listed, 0)[:, None]
    scores = (k[b, j, h] * q.transpose(0, 2, 1, 3)[:, :, :, None]).sum(-1) / math.sqrt(q.shape[-1])
    scores = scores if score_mod is None else score_mod(scores, b, h, i, j)
    keep = (listed >= 0)[:, None] if mask_mod is None else (listed >= 0)[:, None] & mask_mod(b, h, i, j)
    terms = jnp.where(keep, jnp.exp(jnp.where(keep, scores, 0)), 0)
    total = terms.sum(-1) + (0 if sink is None else jnp.exp(sink)[:, None])
    o = ((terms / jnp.where(total == 0, 1, total)[..., None])[..., None] * v[b, j, h]).sum(-2)
    return o.transpose(0, 2, 1, 3), jnp.where(total == 0, -jnp.inf, jnp.log(jnp.where(total == 0, 1, total)))


def truth(function, *arrays):
    """A function's results for the arrays in float64, as NumPy arrays."""
    with jax.enable_x64(True):
        wide = [jnp.asarray(np.asarray(x.astype(jnp.float32)), jnp.float64) for x in arrays]
        return jax.tree.map(np.asarray, jax.jit(function)(*wide))


def close(found, expected, tolerance=2e-5):
    finite = np.abs(expected[np.isfinite(expected)])
    np.testing.assert_allclose(np.asarray(found, np.float64), expected, rtol=0, atol=tolerance * max(1.0, finite.max(initial=0)))


@pytest.mark.parametrize("road", ["eager", "jit", "xla"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_agrees_with_the_gathered_keys(shape, dtype, road, random):
    q, k, v, listed = drawn(random, shape, dtype)
    bias, slopes = (jnp.asarray(random.standard_normal(size), jnp.float32) for size in ((shape[4],), shape[:2]))
    slopes /= shape[4]
    expected = truth(lambda q, k, v, bias, slopes: dense(q, k, v, listed, modified(bias, slopes), kept), q, k, v, bias, slopes)

    def run(q, k, v, listed):
        backend = "xla" if road == "xla" else None
        return flex_attention(q, k, v, modified(bias, slopes), kept, token_list=listed, return_lse=True, backend=backend)

    o, lse = (run if road == "eager" else jax.jit(run))(q, k, v, listed)
    for found, wanted in zip((o, lse), expected, strict=True):
        close(found, wanted, 2e-5 if dtype == jnp.float32 else 3e-2)
    assert o.dtype == dtype and (o[-1, -1] == 0).all() and (lse[-1, :, -1] == -jnp.inf).all()


@pytest.mark.parametrize(("shape", "road"), [(SHAPES["gqa"], "eager"), *((shape, road) for shape in SHAPES.values() for road in ("jit", "xla"))], ids=str)
def test_gradients_add_up_over_repeats(shape, road, random):
    *tensors, listed = drawn(random, shape)
    leaves = [*tensors, *(jnp.asarray(random.standard_normal(size), jnp.float32) for size in ((shape[4],), shape[:2]))]
    leaves[4] /= shape[4]
    weights = random.standard_normal((*tensors[0].shape[:3], shape[7]))

    def gradients(attend):
        def loss(q, k, v, bias, slopes):
            o, lse = attend(q, k, v, modified(bias, slopes))
            return (o * jnp.asarray(weights, o.dtype)).sum() + jnp.sin(jnp.where(lse == -jnp.inf, 0, lse)).sum()

        return jax.grad(loss, argnums=(0, 1, 2, 3, 4))

    def ours(q, k, v, score_mod):
        return flex_attention(q, k, v, score_mod, kept, token_list=listed, return_lse=True, backend="xla" if road == "xla" else None)

    run = gradients(ours)
    found = (run if road == "eager" else jax.jit(run))(*leaves)
    expected = truth(gradients(lambda q, k, v, score_mod: dense(q, k, v, listed, score_mod, kept)), *leaves)
    for one, other in zip(found, expected, strict=True):
        assert np.abs(other).sum() > 0
        close(one, other, 1e-4)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_gradients_of_keys_that_many_queries_name(dtype, random):
    """A sum of so many terms in 16 bits would lose most of them."""
    q, k, v = (jnp.asarray(random.standard_normal((1, length, 2, 16)), dtype) for length in (1500, 8, 8))
    listed = np.argsort(random.random((1, 1500, 8)))
    found = jax.grad(lambda k, v: flex_attention(q, k, v, token_list=listed).astype(jnp.float32).sum(), argnums=(0, 1))(k, v)
    expected = truth(jax.grad(lambda q, k, v: dense(q, k, v, listed)[0].sum(), argnums=(1, 2)), q, k, v)
    for one, other in zip(found, expected, strict=True):
        close(one, other, 1e-2)


def test_latent_cache(random):
    """128 query heads over one KV head, whose values are the first dims of its keys."""
    q, k = (jnp.asarray(random.standard_normal(size), jnp.float32) for size in ((1, 2, 128, 576), (1, 300, 1, 576)))
    listed = random.integers(-60, 300, (1, 2, 128))
    run = jax.jit(lambda q, k: flex_attention(q, k, k[..., :512], token_list=listed))
    close(run(q, k), truth(lambda q, k: dense(q, k, k[..., :512], listed)[0], q, k))
    found = jax.grad(lambda k: jnp.square(run(q, k)).sum())(k)
    close(found, truth(jax.grad(lambda k, q: jnp.square(dense(q, k, k[..., :512], listed)[0]).sum()), k, q), 1e-4)


@pytest.mark.parametrize("layout", ["SBHD", "BHSD"])
def test_layouts(layout, random):
    q, k, v, listed = drawn(random, SHAPES["gqa"])
    order = ["BSHD".index(letter) for letter in layout]
    o, lse = flex_attention(*(jnp.transpose(x, order) for x in (q, k, v)), token_list=listed, layout=layout, return_lse=True)
    expected, expected_lse = truth(lambda *x: dense(*x, listed), q, k, v)
    close(o, expected.transpose(order))
    close(lse, expected_lse)


def test_sink_and_largest_scores(random):
    q, k, v, listed = drawn(random, SHAPES["gqa"])
    sink = jnp.asarray(random.standard_normal(4), jnp.float32)
    o, lse, largest = flex_attention(q, k, v, token_list=listed, sink=sink, return_lse=True, return_max_logit=True)
    expected, expected_lse = truth(lambda q, k, v, sink: dense(q, k, v, listed, sink=sink), q, k, v, sink)
    close(o, expected)
    close(lse, expected_lse)
    assert (lse[-1, :, -1] == sink).all()
    scores = np.einsum("bqhd,bkhd->bhqk", q, np.repeat(k, 2, axis=2)) / 4
    scores = np.take_along_axis(scores, np.broadcast_to(np.maximum(listed, 0)[:, None], (2, 4, 3, 12)), axis=3)
    close(largest, np.where((listed >= 0)[:, None], scores, -np.inf).max(-1))


def test_positions_and_lengths(random):
    """They mean what they do without a list."""
    q, k, v, listed = drawn(random, SHAPES["gqa"])
    listed[0, 0, :2] = [0, 1]
    of_queries, of_keys, starts = jnp.array([3, 1]), jnp.array([20, 37]), jnp.array([20, 3])
    cases = [
        ({"mask_mod": "causal"}, lambda b, h, i, j: j <= i),
        ({"mask_mod": "causal_bottom_right"}, lambda b, h, i, j: j <= i + 47),
        ({"mask_mod": "causal_bottom_right", "lengths": of_keys}, lambda b, h, i, j: (j <= i + of_keys[b] - 3) & (j < of_keys[b])),
        ({"mask_mod": kept, "q_start": 20}, lambda b, h, i, j: kept(b, h, i + 20, j)),
        ({"mask_mod": kept, "q_start": starts}, lambda b, h, i, j: kept(b, h, i + starts[b], j)),
        ({"lengths": (of_queries, of_keys)}, lambda b, h, i, j: (i < of_queries[b]) & (j < of_keys[b])),
    ]
    for options, mask_mod in cases:
        o, lse = flex_attention(q, k, v, token_list=listed, return_lse=True, **options)
        expected, expected_lse = truth(lambda *x: dense(*x, listed, mask_mod=mask_mod), q, k, v)  # noqa: B023
        close(o, expected)
        close(lse, expected_lse)
        assert jnp.abs(o).sum() > 0


@pytest.mark.parametrize("wide", [False, True], ids=["32 bits", "64 bits"])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.uint32, np.int64, np.uint64])
def test_integers_of_any_dtype(dtype, wide, random):
    q, k, v, _ = drawn(random, (2, 4, 2, 3, 300, 12, 16, 8))
    info = np.iinfo(dtype)
    listed = random.integers(max(int(info.min), -9), min(int(info.max), 299) + 1, (2, 3, 12)).astype(dtype)
    expected = truth(lambda *x: dense(*x, listed.astype(np.int64))[0], q, k, v)
    with jax.enable_x64(wide):
        run = lambda listed: flex_attention(q, k, v, token_list=listed)  # noqa: E731
        for given in (listed, jnp.asarray(listed)):
            close(run(given), expected)
            close(jax.jit(run)(given), expected)


def test_integers_beyond_32_bits(random):
    q, k, v, listed = drawn(random, SHAPES["gqa"])
    expected = truth(lambda *x: dense(*x, listed)[0], q, k, v)
    close(flex_attention(q, k, v, token_list=np.where(listed < 0, -(2**32), listed)), expected)
    with jax.enable_x64(True):
        run = jax.jit(lambda listed: flex_attention(q, k, v, token_list=listed))
        for none in (-(2**32), 2**32, 2**31 - 1, 50):  # a jitted call masks what is beyond the keys
            close(run(jnp.asarray(np.where(listed < 0, none, listed))), expected)


def test_one_list_for_all_batches(random):
    q, k, v, listed = drawn(random, SHAPES["gqa"])
    close(flex_attention(q, k, v, token_list=listed[:1].tolist()), truth(lambda *x: dense(*x, listed[:1])[0], q, k, v))


def test_keys_that_no_entry_names_are_never_read(random):
    q, k, v, listed = drawn(random, SHAPES["gqa"])
    listed = np.where(listed < 10, -1, listed)
    expected = truth(lambda *x: dense(*x, listed)[0], q, k, v)
    k, v = (x.at[:, :10].set(jnp.nan) for x in (k, v))
    close(flex_attention(q, k, v, token_list=listed), expected)
    found = jax.grad(lambda k: jnp.square(flex_attention(q, k, v, token_list=listed)).sum())(k)
    assert jnp.isfinite(found).all() and (found[:, :10] == 0).all()


def test_sizes_of_0(random):
    q, k, v, listed = drawn(random, SHAPES["gqa"])
    for q_, k_, v_, listed_ in (
        (q, k, v, listed[..., :0]),
        (q[:, :0], k, v, listed[:, :0]),
        (q, k[:, :0], v[:, :0], np.full_like(listed, -1)),
        (q[:0], k[:0], v[:0], listed[:0]),
    ):
        o, lse = flex_attention(q_, k_, v_, token_list=listed_, return_lse=True)
        assert o.shape == (*q_.shape[:3], 8) and (o == 0).all()
        assert lse.shape == (q_.shape[0], q_.shape[2], q_.shape[1]) and (lse == -jnp.inf).all()
        assert (jax.grad(lambda q: flex_attention(q, k_, v_, token_list=listed_).sum())(q_) == 0).all()  # noqa: B023


def test_dropout_is_of_each_entry(random):
    q, k, v, listed = drawn(random, (2, 4, 2, 40, 50, 64, 16, 8))
    listed = np.maximum(listed, 0)
    options = {"token_list": listed, "dropout_rate": 0.25, "dropout_key": jax.random.key(SEED)}
    o = flex_attention(q, k, jnp.ones_like(v), **options)
    assert abs(o.mean() - 1) < 0.05 and o.std() > 0.01
    np.testing.assert_allclose(flex_attention(q, k, jnp.ones_like(v), backend="xla", **options), o, atol=1e-5)


def test_mapped_calls(random):
    q, k, v, listed = drawn(random, SHAPES["gqa"])
    lists = np.stack([listed, listed[::-1]])
    found = jax.vmap(lambda q, listed: flex_attention(q, k, v, mask_mod=kept, token_list=listed))(jnp.stack([q, 2 * q]), lists)
    for each, times, of_queries in zip(found, (1, 2), lists, strict=True):
        close(each, truth(lambda q, k, v: dense(times * q, k, v, of_queries, mask_mod=kept)[0], q, k, v))  # noqa: B023


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_shards(kind, random):
    q, k, v, listed = drawn(random, SHAPES["gqa"])
    mesh, spec = jax.make_mesh((2,), ("x",), axis_types=(getattr(jax.sharding.AxisType, kind),)), jax.sharding.PartitionSpec("x")
    arrays = [jax.device_put(x, jax.NamedSharding(mesh, spec)) for x in (q, k, v, jnp.asarray(listed))]
    run = lambda q, k, v, listed: flex_attention(q, k, v, token_list=listed)  # noqa: E731
    expected = truth(lambda *x: dense(*x, listed)[0], q, k, v)
    close(jax.jit(jax.shard_map(run, mesh=mesh, in_specs=spec, out_specs=spec))(*arrays), expected)
    if kind == "Auto":
        close(jax.jit(run)(*arrays), expected)
    else:
        with pytest.raises(scoremod.UnsupportedError, match="token_list: expected no array sharded over explicit axes beside it, found query; call"):
            jax.jit(run)(*arrays)
        for describe in (explain, support):
            with pytest.raises(scoremod.UnsupportedError, match="token_list: expected no array sharded over explicit axes beside it, found query; call"):
                describe(*arrays[:3], token_list=arrays[3])


def test_other_sizes_compile_nothing(random):
    scale, before = float(np.float32(random.uniform(1, 2))), None
    for batch, queries, tokens, entries in ((2, 3, 50, 12), (2, 4, 50, 12), (3, 7, 300, 64), (4, 2, 77, 5)):
        q, k, v, listed = drawn(random, (batch, 4, 2, queries, tokens, entries, 16, 16))
        of_keys, of_queries = (jnp.asarray(random.standard_normal(size), jnp.float32) for size in ((tokens,), (batch, queries)))

        def attend(q, k, v, of_keys, of_queries, attention):
            return attention(q, k, v, lambda score, b, h, q_idx, kv_idx: score * scale + of_keys[kv_idx] + of_queries[b, q_idx])

        ours = functools.partial(attend, attention=lambda *given: flex_attention(*given, kept, token_list=listed))  # noqa: B023
        found = jax.jit(ours)(q, k, v, of_keys, of_queries)
        close(found, truth(lambda *x: attend(*x, lambda *given: dense(*given[:3], listed, given[3], kept)[0]), q, k, v, of_keys, of_queries))  # noqa: B023
        compiled = scoremod.cache.statistics()["compiled"]["problems"]
        assert before in (None, compiled)
        before = compiled


def test_open_sizes(random):
    b, q, n, s = export.symbolic_shape("b, q, n, s")
    shapes = [jax.ShapeDtypeStruct(shape, np.float32) for shape in ((b, q, 4, 16), (b, s, 2, 16), (b, s, 2, 8))]
    checks = [export.DisabledSafetyCheck.custom_call(name) for name in CUSTOM_CALLS]
    run = jax.jit(lambda q, k, v, listed: flex_attention(q, k, v, mask_mod=kept, token_list=listed))
    exported = export.export(run, disabled_checks=checks)(*shapes, jax.ShapeDtypeStruct((b, q, n), np.int32))
    for shape in (SHAPES["gqa"], (1, 4, 2, 5, 70, 9, 16, 8)):
        q, k, v, listed = drawn(random, shape)
        found = exported.call(q, k, v, jnp.asarray(listed, jnp.int32))
        close(found, truth(lambda *x: dense(*x, listed, mask_mod=kept)[0], q, k, v))  # noqa: B023


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"page_table": np.zeros((2, 3), np.int32)}, "token_list: expected no page_table beside it, found one; give"),
        ({"q_offsets": np.array([0, 3])}, "token_list: expected no q_offsets beside it, found one; give"),
        ({"kv_offsets": np.array([0, 3])}, "token_list: expected no kv_offsets beside it, found one; give"),
        ({"max_length": 3}, "token_list: expected no max_length beside it, found one; leave"),
        ({"layout": "THD"}, "layout: expected one of BSHD, SBHD, BHSD, found 'THD'"),
        ({"lengths": np.array([51, 3])}, "lengths: expected a number from 0 to 50"),
        ({"q_start": -1}, "q_start: expected a 32-bit integer from 0 on"),
        ({"score_mod": 5}, "score_mod: expected a function, found 5"),
        ({"token_list": np.zeros((2, 3, 12))}, r"token_list: expected integers \[batch, queries, entries\] .* found float32 of shape \(2, 3, 12\)"),
        ({"token_list": np.zeros((2, 3, 12), bool)}, "token_list: expected integers .* found bool"),
        ({"token_list": np.zeros((2, 2, 12), np.int32)}, r"token_list: .* of shape \(2, 3, any\), .* found int32 of shape \(2, 2, 12\)"),
        ({"token_list": np.zeros((3, 3, 12), np.int32)}, r"token_list: .* of shape \(2, 3, any\), .* found int32 of shape \(3, 3, 12\)"),
        ({"token_list": np.zeros((2, 3), np.int32)}, r"token_list: .* found int32 of shape \(2, 3\)"),
        ({"token_list": "all"}, "token_list: expected integers .* found str"),
        ({"token_list": np.full((2, 3, 12), 50)}, r"token_list: expected entries below 50, the number of keys, found 50 at \[0, 0, 0\]"),
        ({"token_list": np.full((2, 3, 12), 2**32)}, "token_list: expected entries below 50, the number of keys, found 4294967296"),
        ({"token_list": jnp.full((2, 3, 12), 60)}, "token_list: expected entries below 50, the number of keys, found 60"),
    ],
)
def test_what_is_wrong_is_refused(options, message, random):
    q, k, v, listed = drawn(random, SHAPES["gqa"])
    for attend in (flex_attention, explain, support):
        with pytest.raises(scoremod.InvalidArgumentError, match=message):
            attend(q, k, v, **{"token_list": listed, **options})
