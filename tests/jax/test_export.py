"""jax.export with symbolic batch and lengths: one program for all sizes, with the results of a call that is compiled for its sizes."""

import functools
import os
import secrets
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scoremod
from jax import export
from jax.sharding import PartitionSpec as P
from scoremod.jax import CUSTOM_CALLS, explain, flex_attention, fused_attention, register, zoo
from scoremod.jax.context_parallel import context_parallel_attention
from scoremod.jax.ffi import ANY_SIZE, BACKWARD, FORWARD

SEED = int(os.environ.get("SCOREMOD_TEST_SEED") or secrets.randbelow(2**31))
KNOWN = [export.DisabledSafetyCheck.custom_call(target) for target in CUSTOM_CALLS]
H, D = 4, 16
# (batch, queries, keys): 1 of each, lengths of whole tiles and others.
SIZES = [(1, 1, 1), (2, 17, 33), (3, 64, 64), (1, 130, 5)]


def soft_cap(score, b, h, q_idx, kv_idx):
    return 2.0 * jnp.tanh(score / 2.0)


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def with_documents(q, k, v, q_ids, kv_ids):
    return flex_attention(q, k, v, soft_cap, lambda b, h, q_idx, kv_idx: q_ids[b, q_idx] == kv_ids[b, kv_idx])


def with_lengths(q, k, v, lengths):
    return flex_attention(q, k, v, soft_cap, lengths=lengths)


def with_bias(q, k, v, bias):
    return flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: score + bias[h, q_idx, kv_idx])


def with_distances(q, k, v, distances):
    """A table, whose middle is where the symbolic number of queries says."""
    return flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: score + distances[h, q_idx - kv_idx + k.shape[1]])


def with_products(q, k, v, of_queries, of_keys):
    """An operand [b, q_idx, kv_idx] that XLA computes before."""
    return flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: score + of_queries[b, q_idx] @ of_keys[b, kv_idx])


def with_sink_and_lse(q, k, v, sink):
    return flex_attention(q, k, v, mask_mod=causal, sink=sink, return_lse=True)


def with_dropout(q, k, v, seed):
    return flex_attention(q, k, v, mask_mod=causal, dropout_rate=0.3, dropout_key=jax.random.key(seed[0]))


def with_slopes(q, k, v, slopes):
    """A function that reads no size runs at every size."""
    return flex_attention(q, k, v, zoo.alibi(slopes), causal, return_max_logit=True)


# function -> the dimensions of its captured arrays; integers where that is said.
CASES = {
    with_documents: [("b", "s", "i"), ("b", "t", "i")],
    with_lengths: [("b", "i")],
    with_bias: [(H, "s", "t")],
    with_distances: [(H, "s + t")],
    with_products: [("b", "s", 3), ("b", "t", 3)],
    with_sink_and_lse: [(H,)],
    with_dropout: [(1, "i")],
    with_slopes: [(H,)],
}


@pytest.fixture
def random():
    print(f"SCOREMOD_TEST_SEED={SEED}")
    return np.random.default_rng(SEED)


def symbolic(shape, dtype, scope):
    return jax.ShapeDtypeStruct(export.symbolic_shape(", ".join(map(str, shape)), scope=scope), dtype)


def dtype_of(shape, dtype):
    return (shape[:-1], jnp.int32) if shape[-1] == "i" else (shape, dtype)


def exported_of(function, captured, dtype, *, heads_kv=2, **options):
    """The program of a function of q, k, v and captured arrays, exported once."""
    scope = export.SymbolicScope()
    shapes = [(("b", "s", H, D), dtype), *[(("b", "t", heads_kv, D), dtype)] * 2, *(dtype_of(shape, dtype) for shape in captured)]
    return export.export(jax.jit(function), disabled_checks=KNOWN, **options)(*(symbolic(*each, scope) for each in shapes))


def arrays_of(random, captured, dtype, sizes, heads_kv=2):
    batch, queries, keys = sizes
    numbers = {"b": batch, "s": queries, "t": keys, "s + t": queries + keys}
    made = [random.standard_normal((batch, count, heads, D)) for count, heads in ((queries, H), (keys, heads_kv), (keys, heads_kv))]
    for shape in captured:
        shape, kind = dtype_of(shape, dtype)
        shape = tuple(numbers.get(size, size) for size in shape)
        made.append(random.integers(1, 3, shape) if kind == jnp.int32 else random.standard_normal(shape))
    kinds = [dtype] * 3 + [dtype_of(shape, dtype)[1] for shape in captured]
    return [jnp.asarray(array, kind) for array, kind in zip(made, kinds)]


def vjp_of(function, arrays, upstream):
    """The gradients of the float arrays."""
    results, pull_back = jax.vjp(function, *arrays)
    gradients = pull_back(jax.tree.map(lambda x, y: y.astype(x.dtype), results, upstream))
    return [x for x, array in zip(gradients, arrays) if jnp.issubdtype(array.dtype, jnp.floating)]


def check_all_sizes(random, program, function, captured, dtype):
    """A program's results, and the gradients of the float arrays, are to the last bit those of the function at each size."""
    for sizes in SIZES:
        arrays = arrays_of(random, captured, dtype, sizes)
        got, want = program.call(*arrays), jax.jit(function)(*arrays)
        jax.tree.map(np.testing.assert_array_equal, got, want)
        assert jax.tree.leaves(want)[0].shape == (sizes[0], sizes[1], H, D)
        upstream = jax.tree.map(lambda x: jnp.asarray(random.standard_normal(x.shape), x.dtype), want)
        gradients = [jax.jit(functools.partial(vjp_of, f))(arrays, upstream) for f in (program.call, function)]
        assert sizes != SIZES[2] or float(jnp.abs(gradients[1][2].astype(jnp.float32)).max()) > 0
        for mine, plain in zip(*gradients, strict=True):
            np.testing.assert_array_equal(mine.astype(np.float32), plain.astype(np.float32))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("function", CASES)
def test_one_program_runs_all_sizes(random, function, dtype):
    captured = CASES[function]
    check_all_sizes(random, exported_of(function, captured, dtype), function, captured, dtype)


@pytest.mark.parametrize("layout", ["BHSD", "SBHD"])
def test_other_layouts(random, layout):
    order = ["BSHD".index(letter) for letter in layout]
    swapped = lambda x: jnp.transpose(x, order)  # noqa: E731

    def attend(q, k, v):
        o = flex_attention(*map(swapped, (q, k, v)), soft_cap, causal, layout=layout)
        return jnp.transpose(o, [layout.index(letter) for letter in "BSHD"])

    check_all_sizes(random, exported_of(attend, [], jnp.float32), attend, [], jnp.float32)


def test_a_vjp_is_exported_too(random):
    """exported.vjp() is a program of its own, whose calls come with the upstream gradient."""
    captured = CASES[with_bias]
    exported = exported_of(with_bias, captured, jnp.float32)
    of_vjp = exported.vjp()
    for sizes in SIZES:
        arrays = arrays_of(random, captured, jnp.float32, sizes)
        upstream = jnp.asarray(random.standard_normal(arrays[0].shape), jnp.float32)
        for got, want in zip(of_vjp.call(*arrays, upstream), vjp_of(jax.jit(with_bias), arrays, upstream), strict=True):
            np.testing.assert_array_equal(got, want)


def test_no_size_is_in_the_program():
    """The problem that the program carries has null for what calls bring; without symbolic sizes nothing changes."""
    text = exported_of(with_bias, CASES[with_bias], jnp.float32).mlir_module()
    for name in ("batch", "seq_q", "seq_kv"):
        assert f"\\22{name}\\22: null" in text
    assert f"\\22shape\\22: [{H}, null, null]" in text and f"@{ANY_SIZE[FORWARD]}(" in text
    arrays = [jax.ShapeDtypeStruct((2, 8, H, D), jnp.float32)] * 3
    plain = export.export(jax.jit(flex_attention), disabled_checks=KNOWN)(*arrays).mlir_module()
    assert "null" not in plain and "any_size" not in plain


def test_a_size_that_is_fixed_stays_so(random):
    """A number beside symbolic sizes is part of the problem."""
    (s,) = export.symbolic_shape("s")
    given = jax.ShapeDtypeStruct((2, s, H, D), jnp.float32)
    exported = export.export(jax.jit(flex_attention), disabled_checks=KNOWN)(*[given] * 3)
    assert "\\22batch\\22: 2" in exported.mlir_module() and "\\22seq_q\\22: null" in exported.mlir_module()
    for length in (1, 40):
        q = jnp.asarray(random.standard_normal((2, length, H, D)), jnp.float32)
        np.testing.assert_array_equal(exported.call(q, q, q), flex_attention(q, q, q))


def test_a_serialised_program_runs_elsewhere(random, tmp_path):
    captured = CASES[with_documents]
    (tmp_path / "program").write_bytes(exported_of(with_documents, captured, jnp.float32).serialize(vjp_order=1))
    script = """
import sys, jax, jax.export, numpy as np, scoremod.jax
from pathlib import Path
folder = Path(sys.argv[1])
scoremod.jax.register()
program = jax.export.deserialize((folder / "program").read_bytes())
for number in range(int(sys.argv[2])):
    arrays = list(np.load(folder / f"arrays{number}.npz").values())
    o, pull_back = jax.vjp(program.call, *arrays)
    np.savez(folder / f"results{number}.npz", o, *pull_back(np.ones_like(o))[:3])
"""
    made = [arrays_of(random, captured, jnp.float32, sizes) for sizes in SIZES]
    for number, arrays in enumerate(made):
        np.savez(tmp_path / f"arrays{number}.npz", *arrays)
    paths = os.pathsep.join([str(Path(__file__).resolve().parents[2] / "python"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", script, str(tmp_path), str(len(SIZES))]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    for number, arrays in enumerate(made):
        o = with_documents(*arrays)
        results = np.load(tmp_path / f"results{number}.npz")
        for name, want in zip(results, [o, *vjp_of(with_documents, arrays, jnp.ones_like(o))], strict=True):
            np.testing.assert_allclose(results[name], want, rtol=1e-6, atol=1e-6)


def test_a_program_for_cuda_is_exported_where_a_device_is():
    with pytest.raises(scoremod.EnvironmentError, match="expected a device of the platform 'cuda'"):
        exported_of(with_bias, CASES[with_bias], jnp.bfloat16, platforms=["cuda"])


@pytest.mark.parametrize(
    "shape, message",
    [
        ("b, s, h, 8", "found heads_q h, heads_kv h; only batch and lengths may be symbolic"),
        ("b, s, 4, d", "found dim_qk d, dim_v d; only batch and lengths may be symbolic"),
    ],
)
def test_heads_and_head_dims_are_numbers(shape, message):
    q = jax.ShapeDtypeStruct(export.symbolic_shape(shape), jnp.float32)
    with pytest.raises(scoremod.UnsupportedError, match=f"jax.export: expected numbers for heads and head dims.*{message}"):
        export.export(jax.jit(flex_attention), disabled_checks=KNOWN)(q, q, q)


def test_what_no_backend_runs_is_refused_when_it_is_exported():
    (b,) = export.symbolic_shape("b")
    q = jax.ShapeDtypeStruct((b, 8, H, D), jnp.float32)
    attend = lambda **selection: export.export(jax.jit(lambda *x: flex_attention(*x, **selection)), disabled_checks=KNOWN)(q, q, q)  # noqa: E731
    with pytest.raises(scoremod.UnsupportedError, match="no backend on the platform 'cpu' can run this attention: .*fallback="):
        attend(backends="-cpu,-reference")
    with pytest.raises(scoremod.InvalidArgumentError, match="'gpu'"):
        attend(backend="gpu")
    arrays = [jnp.ones((2, 8, H, D))] * 3
    np.testing.assert_allclose(attend(backends="-cpu,-reference", fallback="xla").call(*arrays), arrays[0], rtol=1e-6)


def attend_with(bias, constraints):
    (s,) = export.symbolic_shape("s", constraints=constraints)
    q = jax.ShapeDtypeStruct((1, s, H, D), jnp.float32)
    return export.export(jax.jit(lambda q: flex_attention(q, q, q, lambda score, b, h, i, j: score + bias[i, j])), disabled_checks=KNOWN)(q)


def test_captured_arrays_of_known_sizes(random):
    """Whether such an array has an element for each index is known from constraints alone; it is never read beyond its end."""
    bias = jnp.asarray(random.standard_normal((64, 64)), jnp.float32)
    with pytest.raises(scoremod.UnsupportedError, match="jax.export: expected symbolic sizes whose constraints decide.*is inconclusive.*constraints="):
        attend_with(bias, [])
    with pytest.raises(scoremod.InvalidArgumentError, match="expected a size of s along dimension 0"):
        attend_with(bias, ["s >= 65"])
    exported = attend_with(bias, ["s <= 64"])
    for length in (1, 50, 64):
        q = jnp.asarray(random.standard_normal((1, length, H, D)), jnp.float32)
        np.testing.assert_array_equal(exported.call(q), flex_attention(q, q, q, lambda score, b, h, i, j: score + bias[i, j]))
    with pytest.raises(ValueError, match="s"):
        exported.call(jnp.ones((1, 65, H, D)))


def test_mapped_calls(random):
    """A program that reads the batch of mapped calls has its number in it."""
    (n,) = export.symbolic_shape("n")
    ids = jnp.arange(3) % 2
    mapped = jax.vmap(lambda q: flex_attention(q, q, q, mask_mod=lambda b, h, i, j: (i >= j) | (ids[b] == 0)))
    export_of = lambda shape: export.export(jax.jit(mapped), disabled_checks=KNOWN)(jax.ShapeDtypeStruct(shape, jnp.float32))  # noqa: E731
    exported = export_of((n, 3, 8, H, D))
    for count in (1, 4):
        q = jnp.asarray(random.standard_normal((count, 3, 8, H, D)), jnp.float32)
        np.testing.assert_array_equal(exported.call(q), mapped(q))
    q = jax.ShapeDtypeStruct((2, n, 8, H, D), jnp.float32)
    by_batch = jax.vmap(lambda q: flex_attention(q, q, q, mask_mod=lambda b, h, i, j: (i >= j) | (b == 0)))
    with pytest.raises(scoremod.UnsupportedError, match="jax.export: expected symbolic sizes"):
        export.export(jax.jit(by_batch), disabled_checks=KNOWN)(q)


def test_pages_of_any_size(random):
    """A pool, its table and the lengths, which are gathered before the attention."""
    scope = export.SymbolicScope()
    shapes = [("b", 1, H, D), ("n", 4, 2, D)], [("b", "w"), ("b",)]
    given = [symbolic(shape, kind, scope) for group, kind in zip(shapes, (jnp.float32, jnp.int32)) for shape in group]
    attend = lambda q, pool, table, lengths: flex_attention(q, pool, pool, page_table=table, lengths=lengths)  # noqa: E731
    exported = export.export(jax.jit(attend), disabled_checks=KNOWN)(*given)
    for batch, blocks, width in ((1, 2, 1), (3, 9, 4)):
        q, pool = (jnp.asarray(random.standard_normal(shape), jnp.float32) for shape in ((batch, 1, H, D), (blocks, 4, 2, D)))
        table = jnp.asarray(random.integers(0, blocks, (batch, width)), jnp.int32)
        lengths = jnp.asarray(random.integers(0, 4 * width + 1, batch), jnp.int32)
        np.testing.assert_allclose(exported.call(q, pool, table, lengths), attend(q, pool, table, lengths), atol=1e-6)


def exported_with(attend, *shapes):
    return export.export(jax.jit(attend), disabled_checks=KNOWN)(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes))


def test_what_takes_numbers_alone_says_so():
    b, s = export.symbolic_shape("b, s")
    scale = lambda graph, score, tensors: graph.mul(score, tensors["by"])  # noqa: E731
    options = {"score_mod": scale, "score_mod_tensors": {"by": 2.0}, "score_mod_bprop": scale, "score_mod_bprop_tensors": {"by": 2.0}}
    with pytest.raises(scoremod.UnsupportedError, match="jax.export: expected symbolic sizes"):
        exported_with(lambda q: fused_attention(q, q, q, **options), (b, s, H, D))
    ragged = lambda q: flex_attention(q, q, q, q_offsets=jnp.array([0, 4]), layout="THD")  # noqa: E731
    with pytest.raises(scoremod.UnsupportedError, match=r"q_offsets: expected arrays whose sizes are numbers, found shapes \(s, 4, 16\)"):
        exported_with(ragged, (s, H, D))
    mesh = jax.make_mesh((2,), ("seq",), axis_types=(jax.sharding.AxisType.Auto,))
    attend = functools.partial(context_parallel_attention, axis_name="seq")
    with pytest.raises(scoremod.UnsupportedError, match="context_parallel_attention: expected arrays whose sizes are numbers"):
        exported_with(lambda q: jax.shard_map(attend, mesh=mesh, in_specs=P(None, "seq"), out_specs=P(None, "seq"))(q, q, q), (b, 2 * s, H, D))
    with pytest.raises(scoremod.UnsupportedError, match="jax.export: expected symbolic sizes"):
        exported_with(lambda q: flex_attention(q, q, q, backend="xla"), (b, s, H, D))
    q = jax.ShapeDtypeStruct((b, s, H, D), jnp.float32)
    with pytest.raises(scoremod.UnsupportedError, match="explain: expected sizes that are numbers"):
        explain(q, q, q)
    assert exported_with(lambda q: flex_attention(q, q, q, backend="xla"), (b, 8, H, D)).call(jnp.ones((2, 8, H, D))).shape == (2, 8, H, D)


def test_with_types_of_64_bits(random):
    """A symbolic size is then an int64, and an operand stays an int32."""
    with jax.enable_x64(True):
        exported = exported_of(with_distances, CASES[with_distances], jnp.float32)
        arrays = arrays_of(random, CASES[with_distances], jnp.float32, SIZES[1])
        np.testing.assert_array_equal(exported.call(*arrays), with_distances(*arrays))


def test_arrays_that_do_not_fit_are_refused():
    exported = exported_of(with_documents, CASES[with_documents], jnp.float32)
    q, k = jnp.ones((2, 8, H, D)), jnp.ones((2, 9, 2, D))
    ids = jnp.ones((2, 8), jnp.int32), jnp.ones((2, 9), jnp.int32)
    exported.call(q, k, k, *ids)
    for wrong in ((q, k[:1], k[:1], *ids), (q, k, k, *ids[::-1]), (q[:0], k[:0], k[:0], ids[0][:0], ids[1][:0])):
        with pytest.raises(ValueError, match="dimension variable"):
            exported.call(*wrong)


def test_exported_lengths_that_become_zero():
    """JAX lets an expression of sizes be 0, which is refused by name."""
    (s,) = export.symbolic_shape("s")
    attend = jax.jit(lambda q: flex_attention(q, q[:, 1:], q[:, 1:]))
    exported = export.export(attend, disabled_checks=KNOWN)(jax.ShapeDtypeStruct((1, s, H, D), jnp.float32))
    assert exported.call(jnp.ones((1, 2, H, D))).shape == (1, 2, H, D)
    with pytest.raises(jax.errors.JaxRuntimeError, match="invalid argument: seq_kv: expected at least 1, found 0"):
        exported.call(jnp.ones((1, 1, H, D)))


PROBLEM = (
    '{"batch": null, "seq_q": null, "seq_kv": null, "heads_q": 1, "heads_kv": 1, "dim_qk": 8, "dim_v": 8, "dtype": "f32", "layout": "BSHD", '
    '"program": "operand o0: f32 [b, q_idx]\\nvalue = score + o0", "operands": [{"name": "o0", "dtype": "f32", "shape": [null, null]}], "backward": true, '
    '"stats": true}'
)


def called(target, shapes, results, **attributes):
    register()
    call = jax.ffi.ffi_call(target, [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in results] + [jax.ShapeDtypeStruct((64,), jnp.uint8)])
    arrays = [jnp.ones(shape, jnp.float32) for shape in shapes]
    return jax.jit(lambda *x: call(*x, backends="cpu", **attributes))(*arrays)


def test_buffers_that_disagree_are_named():
    """The handler, too, checks what JAX checks of exported calls."""
    forward = functools.partial(called, ANY_SIZE[FORWARD], results=[(2, 3, 1, 8), (2, 1, 3)])
    q, k, o0 = (2, 3, 1, 8), (2, 5, 1, 8), (2, 3)
    assert forward([q, k, k, o0], problem=PROBLEM)[0].shape == q
    for shapes, message in (
        ([q, (4, 5, 1, 8), k, o0], "batch: expected 2, as query has, found 4 in dimension 0 of key"),
        ([q, k, (2, 6, 1, 8), o0], "seq_kv: expected 5, as key has, found 6 in dimension 1 of value"),
        ([q, k, k, (2, 4)], r"expected \[2, 3\], the problem's sizes along the axes \[b, q_idx\] of operand 'o0'; found \[2, 4\]"),
        ([q, k, k], "operand 'o0': expected it as argument 3"),
        ([q, k, k, (2,)], "operand 'o0': expected more than 1 dimensions, found 1"),
        ([(0, 3, 1, 8), (0, 5, 1, 8), (0, 5, 1, 8), (0, 3)], "batch: expected at least 1, found 0"),
        ([q, (2, 0, 1, 8), (2, 0, 1, 8), o0], "seq_kv: expected at least 1, found 0"),
        ([q, (2, 5, 1, 4), k, o0], r"'k': expected F32\[2,5,1,8\], found F32\[2,5,1,4\]"),
    ):
        with pytest.raises(jax.errors.JaxRuntimeError, match=message):
            forward(shapes, problem=PROBLEM)
    backward = functools.partial(called, ANY_SIZE[BACKWARD], results=[q, k, k, o0], problem=PROBLEM, wanted=np.array([0]))
    assert backward([q, k, k, q, (2, 1, 3), q, o0])[3].shape == o0
    with pytest.raises(jax.errors.JaxRuntimeError, match="operand 'o0': expected more than 1 dimensions, found 1"):
        backward([q, k, k, q, (2, 1, 3), q, (2,)])


@pytest.mark.parametrize(
    "change, message",
    [
        (('"dim_qk": 8', '"dim_qk": null'), "dim_qk: expected an integer, found null"),
        (('"heads_q": 1', '"heads_q": null'), "heads_q, heads_kv: expected numbers"),
        (('"layout": "BSHD"', '"layout": "THD"'), "q.layout: expected BSHD, SBHD or BHSD"),
        (('"seq_q": null, ', ""), "seq_q"),
        (("{", "["), "expected JSON"),
    ],
)
def test_problems_that_are_none_are_refused_when_xla_compiles(change, message):
    q = (2, 3, 1, 8)
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"invalid argument.*{message}"):
        called(ANY_SIZE[FORWARD], [q, q, q, (2, 3)], [q, (2, 1, 3)], problem=PROBLEM.replace(*change, 1))
