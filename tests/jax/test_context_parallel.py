"""Sequences sharded over a mesh axis: by ring and by all-gather, forward and backward as on one device."""

import functools
import json
import re
import warnings

import dense_reference as dense
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import scoremod
from scoremod.jax import flex_attention
from scoremod.jax.context_parallel import context_parallel_attention, stripe, unstripe

B, S, H, D, SHARDS = 2, 32, 4, 8, 4
MESH = jax.make_mesh((SHARDS,), ("seq",), axis_types=(AxisType.Auto,))
ARRAYS = [dense.random_array(5, (H,)), dense.random_array(6, (2 * S - 1,)), dense.random_array(7, (B, S))]
IDS = jnp.asarray(np.arange(B * S).reshape(B, S) // 13, jnp.int32)
LENGTHS = jnp.asarray([S, 21], jnp.int32)


def modifiers(slopes, table, key_bias, ids):
    """Everything that asks for positions: a distance, a table of distances, an array over keys, documents, and what XLA computes."""

    def score_mod(score, b, h, q_idx, kv_idx):
        score = score + slopes[h] * (q_idx - kv_idx) + table[q_idx - kv_idx + S - 1] + key_bias[b, kv_idx]
        bucket = jnp.searchsorted(jnp.asarray([3, 9, 20]), kv_idx)
        return jnp.where(ids[b, q_idx] == ids[b, kv_idx], score + 0.1 * bucket, -jnp.inf)

    return score_mod, lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & (ids[b, kv_idx] != 3)


@pytest.mark.parametrize(
    "options, striped, check_vma",
    [
        *(({}, striped, check_vma) for striped in (False, True, 4) for check_vma in (False, True)),
        ({"strategy": "all_gather"}, False, False),
        ({"strategy": "all_gather"}, True, True),
        ({"strategy": "all_gather"}, 4, False),
        ({"backend": "xla"}, False, False),
        ({"backend": "xla"}, 4, True),
    ],
)
def test_as_on_one_device(options, striped, check_vma):
    """The batch is sharded, too, with what is captured of each and with the lengths."""
    q, k, v = (dense.random_array(i, (B, S, heads, D)) for i, heads in enumerate((H, 2, 2)))
    mesh = jax.make_mesh((B, SHARDS), ("data", "seq"), axis_types=(AxisType.Auto,) * 2)

    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(*[P("data", "seq")] * 3, P(), P(), *[P("data")] * 3),
        out_specs=(P("data", "seq"), P("data", None, "seq")),
        check_vma=check_vma,
    )
    def sharded(q, k, v, *arrays):
        *arrays, lengths = arrays
        mods = modifiers(*arrays)
        return context_parallel_attention(q, k, v, *mods, axis_name="seq", striped=striped, lengths=lengths, return_lse=True, **options)

    def parallel(q, k, v, *arrays):
        order, back = (functools.partial(f, shards=SHARDS, tokens=int(striped)) if striped else lambda x, axis: x for f in (stripe, unstripe))
        o, lse = sharded(order(q, axis=1), order(k, axis=1), order(v, axis=1), *arrays)
        return back(o, axis=1), back(lse, axis=2)

    def single(q, k, v, *arrays):
        *arrays, lengths = arrays
        return flex_attention(q, k, v, *modifiers(*arrays), lengths=lengths, return_lse=True)

    results = []
    for attention in (parallel, single):

        def loss(*x, f=attention):
            o, lse = f(*x)
            return (o**2).sum() + (jnp.where(jnp.isneginf(lse), 0, lse) ** 2).sum()

        run = jax.jit(lambda *x, f=attention, g=jax.grad(loss, argnums=range(6)): (f(*x), g(*x)))
        results.append(run(q, k, v, *ARRAYS, IDS, LENGTHS))
    for got, want in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(got, want, atol=3e-5 * max(1, np.abs(want).max()))


@pytest.mark.parametrize(
    "options, striped, check_vma",
    [({}, False, True), ({}, 4, False), ({"strategy": "all_gather"}, False, True), ({"backend": "xla"}, 4, False)],
)
def test_lengths_and_a_sink_are_those_of_one_device(options, striped, check_vma):
    """A batch without a key: its output is 0 and its LSE the sink."""
    q, k, v = (dense.random_array(i, (B, S, heads, D)) for i, heads in enumerate((H, 2, 2)))
    lengths, sink, slopes = jnp.asarray([0, 21]), dense.random_array(8, (H,)), ARRAYS[0]

    def attend(attention, order, back):
        def attended(q, k, v, slopes, sink):
            score_mod = lambda score, b, h, q_idx, kv_idx: score + slopes[h] * (q_idx - kv_idx)  # noqa: E731
            return attention(q, k, v, score_mod, causal, lengths=lengths, sink=sink, return_lse=True)

        if attention is not flex_attention:
            specs = {"in_specs": (*[P(None, "seq")] * 3, P(), P()), "out_specs": (P(None, "seq"), P(None, None, "seq"))}
            attended = jax.shard_map(attended, mesh=MESH, check_vma=check_vma, **specs)

        def loss(q, k, v, *arrays):
            o, lse = attended(order(q, axis=1), order(k, axis=1), order(v, axis=1), *arrays)
            o, lse = back(o, axis=1), back(lse, axis=2)
            return (o**2).sum() + (lse**2).sum(), (o, lse)

        return jax.jit(jax.value_and_grad(loss, argnums=range(5), has_aux=True))(q, k, v, slopes, sink)

    as_it_lies = lambda x, axis: x  # noqa: E731
    order, back = (functools.partial(f, shards=SHARDS, tokens=striped) if striped else as_it_lies for f in (stripe, unstripe))
    sharded = functools.partial(context_parallel_attention, axis_name="seq", striped=striped, **options)
    got, want = attend(sharded, order, back), attend(flex_attention, as_it_lies, as_it_lies)
    np.testing.assert_allclose(got[0][1][1][0], np.broadcast_to(sink[:, None], (H, S)), rtol=1e-6)
    for found, expected in zip(*map(jax.tree.leaves, (got, want)), strict=True):
        np.testing.assert_allclose(found, expected, atol=3e-5 * max(1, np.abs(expected).max()))


def capped_bias(graph, score, tensors):
    """A callback of positions and of tensors that vary along each axis."""
    row, column = (graph.gen_index(score, axis=axis) for axis in (2, 3))
    distance = graph.mul(tensors["slopes"], graph.div(graph.sub(column, row), S))
    score = graph.add(graph.mul(graph.tanh(graph.div(score, tensors["cap"])), tensors["cap"]), graph.add(distance, tensors["bias"]))
    return graph.binary_select(graph.mul(score, tensors["of_queries"]), float("-inf"), graph.cmp_ge(row, column))


@pytest.mark.parametrize(
    "options, striped, check_vma", [({}, False, True), ({}, 4, False), ({"strategy": "all_gather"}, True, True), ({"backend": "xla"}, False, True)]
)
def test_graph_callbacks_are_as_a_dense_attention(options, striped, check_vma):
    """With gradients of the callback's tensors, against float64."""
    tensors = {
        "slopes": dense.random_array(3, (H, 1, 1)),
        "cap": jnp.float32(3),
        "bias": dense.random_array(4, (B, 1, 1, S)),
        "of_queries": dense.random_array(5, (1, H, S, 1)),
    }
    names = sorted(tensors)

    @functools.partial(jax.shard_map, mesh=MESH, in_specs=(*[P(None, "seq")] * 3, *[P()] * 4), out_specs=P(None, "seq"), check_vma=check_vma)
    def sharded(q, k, v, *arrays):
        given = dict(zip(names, arrays, strict=True))
        return context_parallel_attention(q, k, v, capped_bias, axis_name="seq", striped=striped, score_mod_tensors=given, **options)

    def parallel(q, k, v, *arrays):
        order, back = (functools.partial(f, shards=SHARDS, tokens=int(striped), axis=1) if striped else lambda x: x for f in (stripe, unstripe))
        return back(sharded(order(q), order(k), order(v), *arrays))

    def definition(q, k, v, *arrays):
        slopes, cap, bias, of_queries = (dict(zip(names, arrays, strict=True))[name] for name in ("slopes", "cap", "bias", "of_queries"))

        def modifier(s, b, h, i, j):
            s = cap * jnp.tanh(s / cap) + slopes[h, 0, 0] * (j - i) / S + bias[b, 0, 0, j]
            return jnp.where(i >= j, s * of_queries[0, h, i, 0], -jnp.inf)

        return dense.attention(q, k, v, modifier)

    arrays = [*(dense.random_array(i, (B, S, heads, D)) for i, heads in enumerate((H, 2, 2))), *(tensors[name] for name in names)]
    results = jax.jit(functools.partial(with_gradients, parallel))(*arrays)
    plain = jax.jit(functools.partial(with_gradients, definition))(*arrays)
    dense.assert_close(results, plain, dense.in_float64(functools.partial(with_gradients, definition), *arrays), captured=4, scores=B * H * S * S)


def test_a_wrong_backward_of_a_callback_is_refused_and_a_right_one_taken():
    double = lambda graph, score, tensors: graph.mul(score, 2.0)  # noqa: E731
    right, wrong = (lambda graph, dscore, tensors, slope=slope: graph.mul(dscore, slope) for slope in (2.0, 3.0))
    q, k, v = (dense.random_array(i, (B, S, H, D)) for i in range(3))
    definition = jax.grad(lambda q, k, v: (dense.attention(q, k, v, lambda s, *_: 2 * s) ** 2).sum())
    plain, truth = definition(q, k, v), dense.in_float64(definition, q, k, v)
    largest = float(jnp.abs(dense.attention_and_lse(q, k, v, lambda s, *_: 2 * s)[1]).max())
    loss = lambda q, bprop, **options: (sharded_over(SHARDS, score_mod=double, score_mod_bprop=bprop, **options)(q, k, v) ** 2).sum()  # noqa: E731
    dense.assert_close(jax.grad(loss)(q, right), plain, truth, largest_lse=largest)
    with pytest.raises(scoremod.InvalidArgumentError, match="expected the derivative of score_mod"):
        loss(q, wrong)
    trusted = jax.grad(functools.partial(loss, trust_bprop=True))(q, wrong)
    dense.assert_close(trusted, 1.5 * plain, 1.5 * truth, largest_lse=largest)


def sharded_over(shards, **options):
    """context_parallel_attention of whole sequences, on a mesh of so many devices."""
    mesh = jax.make_mesh((shards,), ("seq",), devices=jax.devices()[:shards], axis_types=(AxisType.Auto,))
    attention = functools.partial(context_parallel_attention, axis_name="seq", **options)
    return jax.shard_map(attention, mesh=mesh, in_specs=P(None, "seq"), out_specs=P(None, "seq"))


def calls_of(text):
    """(direction, problem) of each custom call in XLA's text of a program, before or after it was compiled."""
    plain = lambda escaped: re.sub(r"\\(\\|[0-9A-F]{2})", lambda code: code[1] if code[1] == "\\" else chr(int(code[1], 16)), escaped)  # noqa: E731
    found = re.findall(r'(?:@|custom_call_target=")scoremod_attention_(forward|backward)\b.*?problem = "([^"]*)"', text)
    return [(direction, json.loads(plain(problem))) for direction, problem in found]


def problems_of(run, *arrays):
    """The programs that XLA's calls are compiled for."""
    return {problem["program"] for _, problem in calls_of(jax.jit(run).lower(*arrays).as_text())}


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


@pytest.mark.parametrize("enabled, strategy, warns", [(True, "ring", True), (True, "all_gather", False), (False, "ring", False)])
def test_a_ring_that_may_be_loaded_from_a_compilation_cache_warns(enabled, strategy, warns):
    q = dense.random_array(3, (B, S, H, D))
    jax.config.update("jax_enable_compilation_cache", enabled)
    try:
        with warnings.catch_warnings(record=True) as found:
            jax.eval_shape(sharded_over(SHARDS, strategy=strategy), q, q, q)
    finally:
        jax.config.update("jax_enable_compilation_cache", False)
    assert ["collectives of loops are out of order" in str(each.message) for each in found] == [True] * warns


@pytest.mark.parametrize(
    "mask_mod, kinds",
    [
        (None, ["full"]),
        (causal, ["band", "full"]),  # beside the distances at which nothing is kept, which run nothing
        (lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & (q_idx - kv_idx < 6), ["band", "band"]),
        (lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) | (kv_idx < 3), ["full", "general", "general"]),
    ],
)
def test_a_ring_runs_what_is_kept_at_each_distance(mask_mod, kinds):
    q = dense.random_array(3, (B, S, H, D))
    run = sharded_over(SHARDS, mask_mod=mask_mod)
    found = []
    for program in problems_of(run, q, q, q):
        problem = {"batch": B, "heads_q": H, "seq_q": S // SHARDS, "dim_qk": D, "program": program}
        problem["operands"] = [{"name": name, "dtype": "i32"} for name in re.findall(r"operand (\w+)", program)]
        found.append(scoremod.explain(problem)["mask"]["kind"])
    assert sorted(found) == kinds
    np.testing.assert_allclose(jax.jit(run)(q, q, q), flex_attention(q, q, q, mask_mod=mask_mod), atol=1e-5)


def alibi(score, b, h, q_idx, kv_idx):
    return score - 0.1 * (q_idx - kv_idx)


def with_gradients(attention, *arrays):
    o, pull_back = jax.vjp(attention, *arrays)
    return o, *pull_back(jnp.cos(o))


def of_slopes(slopes):
    return {"score_mod": lambda score, b, h, q_idx, kv_idx: score + slopes[h] * (kv_idx - q_idx), "mask_mod": causal}


GATHERS = {"strategy": "all_gather"}


@pytest.mark.parametrize(
    "options", [{}, {"striped": True}, {"striped": 4}, {"dropout_rate": 0.25}, {**GATHERS, "striped": True}, {**GATHERS, "dropout_rate": 0.25}]
)
def test_one_shard_makes_the_plain_call(options):
    arrays = [dense.random_array(i, (B, S, H, D)) for i in range(3)]
    dropout = {name: value for name, value in options.items() if name == "dropout_rate"}
    dropout |= {"dropout_key": jax.random.key(1)} if dropout else {}
    parallel = sharded_over(1, **of_slopes(ARRAYS[0]), **options | dropout)
    plain = lambda q, k, v: flex_attention(q, k, v, **of_slopes(ARRAYS[0]), **dropout)  # noqa: E731
    runs = [jax.jit(functools.partial(with_gradients, attention)) for attention in (parallel, plain)]
    for got, want in zip(*(run(*arrays) for run in runs), strict=True):
        np.testing.assert_array_equal(got, want)
    texts = [run.lower(*arrays).compile().as_text() for run in runs]
    assert calls_of(texts[0]) == calls_of(texts[1]) and [direction for direction, _ in calls_of(texts[1])] == ["forward", "backward"]
    assert not re.findall("collective-permute|all-gather", texts[0])


@pytest.mark.parametrize("shards, forward, backward", [(2, 3, 3), (4, 5, 7)])
def test_each_part_runs_once_forward_and_once_backward(shards, forward, backward):
    """The own part, and two masks for each other step: those of a loop, and the last; backward the first, too."""
    q = dense.random_array(0, (B, S, H, D)).astype(jnp.bfloat16)
    attention = sharded_over(shards, **of_slopes(ARRAYS[0]), striped=True)
    calls = calls_of(jax.jit(functools.partial(with_gradients, attention)).lower(q, q, q).compile().as_text())
    directions = [direction for direction, _ in calls]
    assert (directions.count("forward"), directions.count("backward")) == (forward, backward)
    # One mask is for keys at the same place in an earlier shard, the other for keys in a later one.
    masks = [scoremod.explain(problem)["mask"] for _, problem in calls]
    assert {(mask["kind"], mask["band"]["right"]) for mask in masks} == {("band", 0), ("band", -1)}


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_gradients_of_operands_are_those_that_are_asked_for(shards):
    """A captured array's gradient takes longer than those of q, k and v."""
    q = dense.random_array(0, (B, S, H, D))

    def loss(q, slopes):
        whole = P(None, "seq")
        mesh = jax.make_mesh((shards,), ("seq",), devices=jax.devices()[:shards], axis_types=(AxisType.Auto,))
        local = lambda q, slopes: context_parallel_attention(q, q, q, **of_slopes(slopes), axis_name="seq")  # noqa: E731
        return (jax.shard_map(local, mesh=mesh, in_specs=(whole, P()), out_specs=whole)(q, slopes) ** 2).sum()

    for argnums, wanted in ((0, {False}), ((0, 1), {True})):
        calls = calls_of(jax.jit(jax.grad(loss, argnums)).lower(q, ARRAYS[0]).as_text())
        assert {operand["gradient"] for _, problem in calls for operand in problem["operands"] if operand["dtype"] == "f32"} == wanted


@pytest.mark.parametrize("striped", [False, True])
@pytest.mark.parametrize("shards", [2, 3])
def test_small_rings(shards, striped):
    arrays = [dense.random_array(i, (B, 6 * 4, heads, D)) for i, heads in enumerate((H, 2, 2))]
    order, back = (functools.partial(f, shards=shards, axis=1) if striped else lambda x: x for f in (stripe, unstripe))
    ring = sharded_over(shards, score_mod=alibi, mask_mod=causal, striped=striped)
    got = jax.jit(functools.partial(with_gradients, lambda *x: back(ring(*map(order, x)))))(*arrays)
    for x, want in zip(got, with_gradients(lambda q, k, v: flex_attention(q, k, v, alibi, causal), *arrays), strict=True):
        np.testing.assert_allclose(x, want, atol=3e-5)


@pytest.mark.parametrize("check_vma", [False, True])
def test_of_two_results_one_may_have_no_gradient(check_vma):
    arrays = [dense.random_array(i, (B, S, H, D)) for i in range(3)]
    mesh = jax.make_mesh((2,), ("seq",), devices=jax.devices()[:2], axis_types=(AxisType.Auto,))
    attention = functools.partial(context_parallel_attention, mask_mod=causal, axis_name="seq", return_lse=True)
    specs = {"in_specs": P(None, "seq"), "out_specs": (P(None, "seq"), P(None, None, "seq"))}
    ring = jax.shard_map(attention, mesh=mesh, check_vma=check_vma, **specs)
    plain = functools.partial(flex_attention, mask_mod=causal, return_lse=True)
    for number in range(2):
        got, want = (jax.jit(jax.grad(lambda *x, f=f: (f(*x)[number] ** 2).sum(), (0, 1, 2)))(*arrays) for f in (ring, plain))  # noqa: B023
        for one, other in zip(got, want):
            np.testing.assert_allclose(one, other, atol=3e-5 * max(1, np.abs(other).max()))


@pytest.mark.parametrize("shards", [2, 4])
def test_what_goes_around_a_ring(shards):
    """k and v once in each direction, the other parts' gradients once, in float32 unless they are one part's, and nothing that nobody waits for."""
    q = dense.random_array(0, (B, S, H, D)).astype(jnp.bfloat16)
    text = jax.jit(functools.partial(with_gradients, sharded_over(shards, mask_mod=causal))).lower(q, q, q).as_text()
    sent = re.findall(r"collective_permute.*-> tensor<[0-9x]*x(\w+)>", text)
    if shards == 2:  # no loop: k, v, and again, then dk and dv
        assert sent == ["bf16"] * 6
    else:  # forward before the loop and in it, backward twice before it and in it; gradients in it, after it and home
        assert sorted(sent) == ["bf16"] * (2 * 2 + 2 * 3) + ["f32"] * 6
    # The own part is computed while gradients are on their way home: what it reads is there no earlier than they are.
    *_, barrier = re.finditer(r"(%\S+):3 = stablehlo.optimization_barrier", text)
    after = text[barrier.end() :].split("func.func")[0]
    assert len(re.findall("collective_permute", after)) == 2 and len(calls_of(after)) == 1
    assert len(re.findall(re.escape(barrier[1]) + r"#\d", after)) == 3


def test_many_masks_share_a_program_that_takes_the_distance():
    """One for each distance would be more to compile than they are worth."""
    q = dense.random_array(3, (B, 32, H, D))
    mask_mod = lambda b, h, q_idx, kv_idx: functools.reduce(lambda x, y: x | y, [abs(q_idx - kv_idx) == 4 * n + 1 for n in range(8)])  # noqa: E731
    run = sharded_over(8, mask_mod=mask_mod)
    assert len(problems_of(run, q, q, q)) == 1
    np.testing.assert_allclose(jax.jit(run)(q, q, q), flex_attention(q, q, q, mask_mod=mask_mod), atol=1e-5)


def test_queries_and_keys_of_different_lengths():
    q, k = dense.random_array(3, (B, S, H, D)), dense.random_array(4, (B, 2 * S, H, D))
    np.testing.assert_allclose(sharded_over(SHARDS, mask_mod=causal)(q, k, k), flex_attention(q, k, k, mask_mod=causal), atol=1e-5)


@pytest.mark.parametrize("strategy", ["ring", "all_gather"])
def test_a_fallback(strategy):
    q = dense.random_array(3, (B, S, H, D))
    unknown = lambda score, *_: jax.lax.erf_inv(0.5 * jnp.tanh(score))  # noqa: E731
    with pytest.raises(scoremod.UnsupportedError, match="erf_inv"):
        sharded_over(SHARDS, score_mod=unknown, mask_mod=causal, strategy=strategy)(q, q, q)
    got = sharded_over(SHARDS, score_mod=unknown, mask_mod=causal, strategy=strategy, fallback="xla")(q, q, q)
    np.testing.assert_allclose(got, flex_attention(q, q, q, unknown, causal, backend="xla"), atol=1e-5)
    run = sharded_over(SHARDS, mask_mod=causal, strategy=strategy, fallback="xla")
    assert problems_of(run, q, q, q) == problems_of(sharded_over(SHARDS, mask_mod=causal, strategy=strategy), q, q, q) != set()
    assert problems_of(sharded_over(SHARDS, mask_mod=causal, strategy=strategy, fallback="xla", backends="-cpu,-reference"), q, q, q) == set()


def test_the_ring_gathers_nothing():
    q = dense.random_array(0, (B, S, H, D))
    run = jax.shard_map(functools.partial(context_parallel_attention, axis_name="seq"), mesh=MESH, in_specs=P(None, "seq"), out_specs=P(None, "seq"))
    text = jax.jit(jax.grad(lambda q: (run(q, q, q) ** 2).sum())).lower(q).compile().as_text()
    assert "collective-permute" in text and "all-gather" not in text


def test_shards_are_gathered_as_they_lie():
    """A transposed layout of what is sent costs a pass over memory before or after it."""
    q = dense.random_array(0, (B, S, H, D))
    text = jax.jit(functools.partial(with_gradients, sharded_over(SHARDS, strategy="all_gather", striped=True))).lower(q, q, q).compile().as_text()
    layouts = re.findall(r"= \w+\[[0-9,]+\]\{([0-9,]+)\} (?:all-gather|reduce-scatter)\(", text)
    assert len(layouts) == 4 and all(layout == ",".join(map(str, reversed(range(layout.count(",") + 1)))) for layout in layouts)


def test_reordering():
    x = jnp.arange(24).reshape(2, 12)
    np.testing.assert_array_equal(stripe(x, 3, 1)[0], [0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11])
    np.testing.assert_array_equal(unstripe(stripe(x, 3, 1), 3, 1), x)
    np.testing.assert_array_equal(stripe(x, 3, 1, tokens=2)[0], [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11])
    np.testing.assert_array_equal(unstripe(stripe(x, 3, 1, tokens=2), 3, 1, tokens=2), x)


@pytest.mark.parametrize("strategy", ["ring", "all_gather"])
def test_heads_on_an_automatic_axis(strategy):
    arrays = [*(dense.random_array(i, (B, S, H, D)) for i in range(3)), ARRAYS[0]]
    mesh = jax.make_mesh((SHARDS, 2), ("seq", "model"), axis_types=(AxisType.Auto,) * 2)
    placed = [jax.device_put(x, jax.NamedSharding(mesh, P(None, "seq", "model") if x.ndim == 4 else P())) for x in arrays]
    sharded = jax.shard_map(
        lambda q, k, v, slopes: context_parallel_attention(q, k, v, **of_slopes(slopes), axis_name="seq", strategy=strategy),
        mesh=mesh,
        in_specs=(*[P(None, "seq")] * 3, P()),
        out_specs=P(None, "seq"),
        axis_names={"seq"},
    )
    got = jax.jit(functools.partial(with_gradients, sharded))(*placed)
    assert got[0].sharding.spec == P(None, "seq", "model")
    for x, want in zip(got, with_gradients(lambda q, k, v, slopes: flex_attention(q, k, v, **of_slopes(slopes)), *arrays), strict=True):
        np.testing.assert_allclose(x, want, atol=3e-5 * max(1, np.abs(want).max()))


@pytest.mark.parametrize("index", ["q_idx", "kv_idx"])
@pytest.mark.parametrize("options", [{}, {"striped": 4}, {"strategy": "all_gather"}, {"backend": "xla"}])
def test_captured_arrays_of_a_shard_are_refused(options, index):
    """A bias that is sharded as the sequence is: the functions' positions are those of the whole one."""
    q, bias = dense.random_array(3, (B, S, H, D)), ARRAYS[2]

    def sharded(q, bias):
        read = lambda score, b, h, q_idx, kv_idx: score + bias[b, {"q_idx": q_idx, "kv_idx": kv_idx}[index]]  # noqa: E731
        return context_parallel_attention(q, q, q, read, axis_name="seq", **options)

    run = lambda of_bias: jax.shard_map(sharded, mesh=MESH, in_specs=(P(None, "seq"), of_bias), out_specs=P(None, "seq"))  # noqa: E731
    with pytest.raises(scoremod.InvalidArgumentError, match=f"'bias' of shape .2, 8., indexed at .* by {index}: expected a size of 32 .*whole array, by P"):
        jax.eval_shape(run(P(None, "seq")), q, bias)
    jax.eval_shape(run(P()), q, bias)


def test_a_call_outside_of_shard_map_is_refused():
    q = jnp.ones((B, S, H, D), jnp.float32)
    with pytest.raises(scoremod.InvalidArgumentError, match="axis_name: expected .* jax.shard_map .* found 'seq'"):
        context_parallel_attention(q, q, q, axis_name="seq")


@pytest.mark.parametrize(
    "options, message",
    [
        ({"strategy": "rign"}, "strategy: expected one of all_gather, ring"),
        ({"striped": 3}, "striped: expected a divisor of each shard's length, 8, found 3"),
        ({"striped": -1}, 'striped: expected True, False, a number of tokens or "dual_chunk_swap", found -1'),
        ({"striped": "yes"}, "striped: expected True, False"),
        ({"fallback": "cpu"}, 'fallback: expected "xla"'),
        ({"score_mod_tensors": {}}, "score_mod_tensors require score_mod"),
        (
            {"score_mod": lambda graph, score, tensors: score, "score_mod_tensors": {"bias": np.ones((S // SHARDS,), np.float32)}},
            r"score_mod_tensors\['bias'\]: expected a shape that broadcasts to \(2, 4, 32, 32\), found \(8,\)",
        ),
        ({"backend": "cpu", "backends": ["cpu"]}, "found both"),
    ],
)
def test_mistakes(options, message):
    q = jnp.ones((B, S, H, D), jnp.float32)
    with pytest.raises(scoremod.InvalidArgumentError, match=message):
        sharded_over(SHARDS, **options)(q, q, q)


@pytest.mark.parametrize(("reordered", "name"), [(stripe, "stripe"), (unstripe, "unstripe")])
def test_a_length_that_stripes_do_not_divide_is_refused(reordered, name):
    x = jnp.arange(24).reshape(2, 12)
    assert jnp.array_equal(unstripe(stripe(x, 2, -1, 3), 2, -1, 3), x) and stripe(x, 2, 1, 3)[0].tolist() == [0, 1, 2, 6, 7, 8, 3, 4, 5, 9, 10, 11]
    with pytest.raises(scoremod.InvalidArgumentError, match=f"^{name}: expected a length along axis -1 that is a multiple of shards . tokens, 10, found 12"):
        reordered(x, 5, -1, 2)
    with pytest.raises(scoremod.InvalidArgumentError, match="multiple of shards . tokens, 0, found 12"):
        reordered(x, 0, -1)
