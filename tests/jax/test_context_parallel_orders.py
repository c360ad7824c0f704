"""The orders in which a sequence is dealt out to shards, dense and packed, against a dense attention in float64."""

import functools
import itertools
import os
import secrets

import dense_reference as dense
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from test_context_parallel import calls_of, causal, sharded_over

import scoremod
from scoremod.jax import flex_attention
from scoremod.jax.context_parallel import context_parallel_attention, stripe, unstripe
from scoremod.shard_distance import DUAL_CHUNK_SWAP

SEED = int(os.environ.get("SCOREMOD_TEST_SEED") or secrets.randbelow(2**31))
PROBLEMS = 2
WAYS = ({}, {"strategy": "all_gather"}, {"backend": "xla"})
ORDERS = (False, True, 2, DUAL_CHUNK_SWAP, DUAL_CHUNK_SWAP, DUAL_CHUNK_SWAP)


class Problem:
    """A random call: what each shard is given, and the same in one dense attention whose indices are tokens."""

    def __init__(self, seed, is_packed=None, shards=None):
        self.rng = rng = np.random.default_rng(seed)
        self.shards = shards or int(rng.choice([1, 2, 3, 4]))
        self.striped, self.way = ORDERS[rng.integers(len(ORDERS))], WAYS[rng.integers(len(WAYS))]
        self.is_packed = bool(rng.integers(2)) if is_packed is None else is_packed
        self.batch, heads_kv, group = (int(rng.integers(1, 4)) for _ in range(3))
        self.heads, self.length = heads_kv * group, 2 * self.shards * int(rng.integers(1, 6))
        self.window = int(rng.integers(1, self.length + 1))
        self.has_sink, self.callback = bool(rng.integers(2)), bool(rng.integers(2))
        inner = np.sort(rng.integers(0, self.length + 1, self.batch + 1))
        self.offsets = inner if rng.integers(2) else np.concatenate([[0], inner[1:-1], [self.length]])
        self.lengths = rng.integers(0, self.length + 1, self.batch) if rng.integers(2) else None
        rows = (self.length,) if self.is_packed else (self.batch, self.length)
        shapes = [(*rows, heads, dim) for heads, dim in ((self.heads, 8), (heads_kv, 8), (heads_kv, 5))]
        shapes += [(self.batch, self.heads), (self.batch, self.length), (self.heads,)]
        self.arrays = [jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes]
        self.weights = [rng.standard_normal((*rows, self.heads, 5)), rng.standard_normal((*rows, self.heads))]

    def __repr__(self):
        shown = ("shards", "striped", "way", "is_packed", "batch", "heads", "length", "window", "has_sink", "callback", "offsets", "lengths")
        return str({name: getattr(self, name) for name in shown})

    def functions(self, slopes, bias):
        """The functions, which see positions in sequences."""

        def score_mod(score, b, h, i, j):
            return 2 * jnp.tanh(score / 2) + slopes[b, h] * (j - i) / 8 + bias[b, j]

        return score_mod, lambda b, h, i, j: (i >= j) & (i - j < self.window)

    def options(self, slopes, bias, sink):
        options = {"lengths": self.lengths, "sink": sink if self.has_sink else None}
        if self.is_packed:
            options |= {"layout": "THD", "q_offsets": self.offsets.astype(np.int32)}
        score_mod, mask_mod = self.functions(slopes, bias)
        if self.callback:
            tensors = {"slopes": slopes[:, :, None, None], "bias": bias[:, None, None]}
            return options | {"score_mod": self.graph_callback, "mask_mod": mask_mod, "score_mod_tensors": tensors}
        return options | {"score_mod": score_mod, "mask_mod": mask_mod}

    @staticmethod
    def graph_callback(graph, score, tensors):
        row, column = (graph.gen_index(score, axis=axis) for axis in (2, 3))
        score = graph.mul(graph.tanh(graph.div(score, 2.0)), 2.0)
        return graph.add(graph.add(score, graph.mul(tensors["slopes"], graph.div(graph.sub(column, row), 8.0))), tensors["bias"])

    def parallel(self, order, *arrays):
        """(o, lse), with tokens before heads. order: in which the shards are told that the sequence is."""
        axis = 0 if self.is_packed else 1
        spec = P("seq") if self.is_packed else P(None, "seq")
        mesh = jax.make_mesh((self.shards,), ("seq",), devices=jax.devices()[: self.shards], axis_types=(AxisType.Auto,))
        shared = dict(axis_name="seq", striped=order, return_lse=True, **self.way)
        run = lambda q, k, v, *others: context_parallel_attention(q, k, v, **self.options(*others), **shared)  # noqa: E731
        of_lse = P("seq") if self.is_packed else P(None, None, "seq")
        sharded = jax.shard_map(run, mesh=mesh, in_specs=(*[spec] * 3, *[P()] * 3), out_specs=(spec, of_lse))
        q, k, v = (self.dealt(stripe, x, axis) for x in arrays[:3])
        o, lse = sharded(q, k, v, *arrays[3:])
        return self.dealt(unstripe, o, axis), self.dealt(unstripe, lse if self.is_packed else jnp.moveaxis(lse, 1, 2), axis)

    def dealt(self, reorder, array, axis):
        return reorder(array, self.shards, axis, self.striped) if self.striped else array

    def dense(self, q, k, v, slopes, bias, sink):
        sequence, position = np.zeros((1, self.length), np.int32), np.arange(self.length)
        tokens = np.arange(self.length)
        if self.is_packed:
            q, k, v = q[None], k[None], v[None]
            sequence = np.searchsorted(self.offsets, tokens, side="right") - 1
            sequence[(tokens < self.offsets[0]) | (tokens >= self.offsets[-1])] = -1
            position = tokens - self.offsets[sequence]
        known = np.full(self.batch, self.length) if self.lengths is None else self.lengths
        sequence, position, known = jnp.asarray(sequence.reshape(-1)), jnp.asarray(position), jnp.asarray(known)
        given, masked = self.functions(slopes, bias)

        def of(b, i, j):
            return sequence[i] if self.is_packed else b, position[i], position[j]

        def score_mod(score, b, h, i, j):
            b, i, j = of(b, i, j)
            return given(score, b, h, i, j)

        def mask_mod(b, h, i, j):
            inside = (sequence[i] == sequence[j]) & (sequence[i] >= 0) if self.is_packed else True
            b, i, j = of(b, i, j)
            return inside & (j < known[b]) & masked(b, h, i, j)

        o, lse = dense.attention_and_lse(q, k, v, score_mod, mask_mod)
        if self.has_sink:
            whole = jnp.logaddexp(lse, sink[:, None])
            o, lse = o * jnp.moveaxis(jnp.exp(lse - whole), 1, 2)[..., None].astype(o.dtype), whole
        lse = jnp.moveaxis(lse, 1, 2)
        return (o[0], lse[0]) if self.is_packed else (o, lse)

    def with_gradients(self, attention, *arrays):
        def loss(*arrays):
            o, lse = attention(*arrays)
            weights = [jnp.asarray(each, o.dtype) for each in self.weights]
            return (o * weights[0]).sum() + jnp.where(jnp.isneginf(lse), 0, lse * weights[1]).sum(), (o, lse)

        (_, results), gradients = jax.value_and_grad(loss, range(6), has_aux=True)(*arrays)
        return *results, *gradients

    def check(self, order):
        run, truth = (functools.partial(self.with_gradients, each) for each in (functools.partial(self.parallel, order), self.dense))
        results, plain = (jax.jit(each)(*self.arrays) for each in (run, truth))
        scores = self.heads * self.length**2 * (1 if self.is_packed else self.batch)
        dense.assert_close(results, plain, dense.in_float64(truth, *self.arrays), captured=3, scores=scores, common_scale=True, largest_lse=8.0)


def test_random_problems():
    for number in range(PROBLEMS):
        print(f"SCOREMOD_TEST_SEED={SEED + number}")
        problem = Problem(SEED + number)
        print(problem)
        problem.check(problem.striped)


@pytest.mark.parametrize("is_packed", [False, True])
def test_shards_that_have_another_order_are_seen(is_packed):
    """The order of a sequence that lies in blocks, and the one of stripes."""
    problem = Problem(5, is_packed, shards=2)
    problem.window, problem.length, problem.lengths = problem.length, problem.length, None
    problem.striped, problem.way = DUAL_CHUNK_SWAP, {}
    problem.offsets = np.linspace(0, problem.length, problem.batch + 1).astype(int)
    problem.check(DUAL_CHUNK_SWAP)
    for order in (False, True):
        with pytest.raises(AssertionError, match="output 0"):
            problem.check(order)


def test_reordering():
    x = jnp.arange(12)
    np.testing.assert_array_equal(stripe(x, 3, 0, DUAL_CHUNK_SWAP), [0, 1, 10, 11, 2, 3, 8, 9, 4, 5, 6, 7])
    for shards, axis in itertools.product((1, 2, 3, 6), (0, 1, -1)):
        x = jnp.arange(24 * 24).reshape(24, 24)
        np.testing.assert_array_equal(unstripe(stripe(x, shards, axis, DUAL_CHUNK_SWAP), shards, axis, DUAL_CHUNK_SWAP), x)
    for reorder, name in ((stripe, "stripe"), (unstripe, "unstripe")):
        with pytest.raises(scoremod.InvalidArgumentError, match='tokens: expected a number of tokens or "dual_chunk_swap", found "?.zigzag'):
            reorder(x, 2, 0, "zigzag")
        with pytest.raises(scoremod.InvalidArgumentError, match=f"^{name}: expected a length along axis 0 that is a multiple of 2 . shards, 10, found 24"):
            reorder(x, 5, 0, DUAL_CHUNK_SWAP)


def test_every_device_has_as_much_to_do_under_a_causal_mask():
    """In each step two pairs of chunks keep something on every device, and the others make no call."""
    q = dense.random_array(0, (1, 16, 1, 8))
    for shards, forward in ((2, 6), (4, 9)):
        run = sharded_over(shards, mask_mod=causal, striped=DUAL_CHUNK_SWAP)
        calls = [problem for direction, problem in calls_of(jax.jit(run).lower(q, q, q).as_text()) if direction == "forward"]
        # At first two diagonals and a pair that keeps all; then at each step a pair that keeps all, and one of two pairs.
        assert len(calls) == forward
        assert {problem["seq_q"] for problem in calls} == {16 // shards // 2}


@pytest.mark.parametrize("options", [{}, {"strategy": "all_gather"}, {"backend": "xla"}], ids=str)
def test_dropout_is_that_of_one_device(options):
    q, k, v = (dense.random_array(i, (2, 16, heads, 8)) for i, heads in enumerate((4, 2, 2)))
    dropout = {"dropout_rate": 0.4, "dropout_key": jax.random.key(3), "mask_mod": causal}
    sharded = sharded_over(4, striped=DUAL_CHUNK_SWAP, **dropout, **options)
    order, back = (functools.partial(f, shards=4, axis=1, tokens=DUAL_CHUNK_SWAP) for f in (stripe, unstripe))
    parallel = lambda *x: back(sharded(*map(order, x)))  # noqa: E731
    for attention in (lambda f: f, lambda f: jax.grad(lambda *x: (f(*x) ** 2).sum(), (0, 1, 2))):
        got, want = (jax.jit(attention(f))(q, k, v) for f in (parallel, functools.partial(flex_attention, **dropout)))
        for one, other in zip(*map(jax.tree.leaves, (got, want)), strict=True):
            np.testing.assert_allclose(one, other, atol=3e-5 * max(1, np.abs(other).max()))


OFFSETS = np.array([0, 5, 16], np.int32)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"q_offsets": OFFSETS}, scoremod.InvalidArgumentError, 'layout: expected "THD"'),
        ({"layout": "THD"}, scoremod.InvalidArgumentError, 'q_offsets: expected them beside layout="THD"'),
        ({"layout": "THD", "kv_offsets": OFFSETS}, scoremod.InvalidArgumentError, "kv_offsets: expected q_offsets beside them"),
        ({"layout": "THD", "q_offsets": np.array([0, 9, 5], np.int32)}, scoremod.InvalidArgumentError, "q_offsets: expected"),
        (
            {"layout": "THD", "q_offsets": OFFSETS, "dropout_rate": 0.5, "dropout_key": jax.random.key(0)},
            scoremod.UnsupportedError,
            "dropout_rate: expected none beside q_offsets in context parallelism.*Pad the sequences",
        ),
        ({"layout": "THD", "q_offsets": OFFSETS, "striped": "zigzag"}, scoremod.InvalidArgumentError, "dual_chunk_swap"),
        ({"layout": "THD", "q_offsets": OFFSETS, "striped": DUAL_CHUNK_SWAP, "shards": 16}, scoremod.InvalidArgumentError, "an even length of each shard"),
    ],
)
def test_mistakes(options, error, message):
    options = dict(options)
    shards = min(options.pop("shards", 4), 8)
    q = jnp.ones((8 if shards == 8 else 16, 2, 8), jnp.float32)
    if shards == 8:
        options["q_offsets"] = np.array([0, 5, 8], np.int32)
    mesh = jax.make_mesh((shards,), ("seq",), devices=jax.devices()[:shards], axis_types=(AxisType.Auto,))
    run = jax.shard_map(functools.partial(context_parallel_attention, axis_name="seq", **options), mesh=mesh, in_specs=P("seq"), out_specs=P("seq"))
    with pytest.raises(error, match=message):
        run(q, q, q)
