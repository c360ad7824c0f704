"""Arrays go in and come out as NumPy's own; damaged and hostile files are refused."""

import json
import struct

import ml_dtypes
import numpy as np
import pytest

SIZES = {"batch": 2, "heads_q": 4, "heads_kv": 2, "seq_q": 5, "seq_kv": 7, "dim_qk": 8, "dim_v": 6}
NUMPY_DTYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
ORDERS = {"BSHD": (0, 2, 1, 3), "SBHD": (2, 0, 1, 3), "BHSD": (0, 1, 2, 3)}  # from b, h, s, d


def dense_attention(q, k, v, scale, bias):
    """In float64, arrays [b, h, s, d]."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    scores = scale * q @ k.swapaxes(-1, -2) + bias
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    return weights / total @ v, (top + np.log(total))[..., 0]


@pytest.mark.parametrize("layout", ORDERS)
@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_outputs_are_the_attention_of_the_inputs(scoremod, tmp_path, rng_seed, layout, dtype):
    rng = np.random.default_rng(rng_seed)
    shapes = {"q": (2, 4, 5, 8), "k": (2, 2, 7, 8), "v": (2, 2, 7, 6)}
    arrays = {name: rng.standard_normal(shape).astype(NUMPY_DTYPES[dtype]) for name, shape in shapes.items()}
    bias = rng.standard_normal((4, 7)).astype(np.float32)
    ids = rng.integers(0, 2, (2, 7)).astype(np.int32)
    keep = rng.random((5, 7)) < 0.8
    keep[:, 0] = True
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", np.ascontiguousarray(array.transpose(ORDERS[layout])))
    for name, array in {"bias": bias, "ids": ids, "allowed": keep}.items():
        np.save(tmp_path / f"{name}.npy", array)
    program = [
        "operand bias: f32 [h, kv_idx]",
        "operand ids: i32 [b, kv_idx]",
        "operand allowed: bool [q_idx, kv_idx]",
        "value = score + bias + f32(ids)",
        "keep = allowed",
    ]
    names = ["q", "k", "v", "bias", "ids", "allowed"]
    problem = {
        **SIZES,
        "dtype": dtype,
        "layout": layout,
        "scale": 0.5,
        "stats": True,
        "program": program,
        "inputs": {name: {"npy": f"{name}.npy"} for name in names},
    }
    (tmp_path / "problem.json").write_text(json.dumps(problem), encoding="utf-8")
    done = scoremod("run", "problem.json", "--out", "out")
    assert done.returncode == 0, done.stderr

    added = bias[None, :, None, :] + ids[:, None, None, :] + np.where(keep, 0, -np.inf)
    o, lse = dense_attention(arrays["q"], arrays["k"], arrays["v"], 0.5, added)
    found = np.load(tmp_path / "out" / "o.npy")
    if dtype == "bf16":
        assert found.dtype == np.uint16
        found = found.view(ml_dtypes.bfloat16)
    assert found.dtype == NUMPY_DTYPES[dtype]
    expected = o.transpose(ORDERS[layout])
    assert found.shape == expected.shape
    # One rounding to the dtype, and float32 arithmetic before it.
    unit = float(ml_dtypes.finfo(NUMPY_DTYPES[dtype]).eps)
    assert np.abs(found.astype(np.float64) - expected).max() <= (unit + 2e-6) * np.abs(arrays["v"].astype(np.float64)).max()
    found_lse = np.load(tmp_path / "out" / "lse.npy")
    assert found_lse.dtype == np.float32
    np.testing.assert_allclose(found_lse, lse, atol=1e-5)


@pytest.mark.parametrize("as_bytes", [False, True])
@pytest.mark.parametrize("dtype", ["e4m3", "e5m2"])
def test_float8_tensors_are_codes(scoremod, tmp_path, rng_seed, dtype, as_bytes):
    """Inputs are as ml_dtypes writes them, or plain bytes; outputs are bytes."""
    format = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}[dtype]
    rng = np.random.default_rng(rng_seed)
    shapes = {"q": (2, 4, 5, 8), "k": (2, 2, 7, 8), "v": (2, 2, 7, 6)}
    arrays = {name: rng.normal(0, 10, shape).astype(format) for name, shape in shapes.items()}
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array.view(np.uint8) if as_bytes else array)
    factors = {"descale_q": 0.1, "descale_k": 0.2, "descale_v": 0.05, "scale_o": 100.0}
    problem = {
        **SIZES,
        "dtype": dtype,
        "layout": "BHSD",
        "stats": True,
        "amax_o": True,
        "inputs": {name: {"npy": f"{name}.npy"} for name in shapes} | {name: {"values": [value]} for name, value in factors.items()},
    }
    (tmp_path / "problem.json").write_text(json.dumps(problem), encoding="utf-8")
    done = scoremod("run", "problem.json", "--out", "out")
    assert done.returncode == 0, done.stderr
    real = {name: array.astype(np.float64) * factors[f"descale_{name}"] for name, array in arrays.items()}
    o, lse = dense_attention(real["q"], real["k"], real["v"], 1 / np.sqrt(8), np.zeros(1))
    found = np.load(tmp_path / "out" / "o.npy")
    assert found.dtype == np.uint8
    unit = float(ml_dtypes.finfo(format).eps) / 2
    expected = np.clip(100 * o, -float(ml_dtypes.finfo(format).max), float(ml_dtypes.finfo(format).max))
    np.testing.assert_allclose(found.view(format).astype(np.float64), expected, rtol=unit + 1e-5, atol=float(ml_dtypes.finfo(format).smallest_subnormal))
    np.testing.assert_allclose(np.load(tmp_path / "out" / "lse.npy"), lse, atol=1e-5)
    amax = np.load(tmp_path / "out" / "amax_o.npy")
    assert amax.shape == () and amax.dtype == np.float32
    np.testing.assert_allclose(amax, np.abs(o).max(), rtol=1e-5)
    checked = scoremod("check", "problem.json", "--backend", "cpu")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "amax_o" in checked.stdout
    timed = scoremod("bench", "problem.json", "--backend", "cpu", "--json")
    assert timed.returncode == 0, timed.stderr


@pytest.fixture
def rng_seed():
    return 20240519


def test_outputs_are_inputs_of_the_next_run(scoremod, tmp_path):
    problem = {**SIZES, "dim_v": 8, "seq_kv": 5, "dtype": "bf16"}
    (tmp_path / "first.json").write_text(json.dumps(problem), encoding="utf-8")
    assert scoremod("run", "first.json", "--out", "out").returncode == 0
    problem["inputs"] = {"q": {"npy": "out/o.npy"}}
    (tmp_path / "second.json").write_text(json.dumps(problem), encoding="utf-8")
    assert scoremod("run", "second.json").returncode == 0


def test_gradients_of_operands_are_written(scoremod, tmp_path):
    problem = {**SIZES, "program": {"score_mod": ["alibi", "head_temperature"], "mask_mod": ["padding"]}}
    (tmp_path / "problem.json").write_text(json.dumps(problem), encoding="utf-8")
    assert scoremod("run", "problem.json", "--backward", "--out", "out").returncode == 0
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["d_slopes.npy", "d_temperature.npy", "dk.npy", "dq.npy", "dv.npy", "lse.npy", "o.npy"]
    assert np.load(tmp_path / "out" / "d_slopes.npy").shape == (4,)
    assert np.abs(np.load(tmp_path / "out" / "d_slopes.npy")).max() > 0


Q = np.zeros((2, 5, 4, 8), np.float32)


def npy_bytes(header, version=(1, 0), data=Q.tobytes()):
    length = struct.pack("<H" if version[0] == 1 else "<I", len(header))
    return b"\x93NUMPY" + bytes(version) + length + header + data


GOOD_HEADER = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 5, 4, 8), }\n"


def run_with_q(scoremod, tmp_path, contents):
    (tmp_path / "q.npy").write_bytes(contents)
    return scoremod("run", "-", input=json.dumps({**SIZES, "inputs": {"q": {"npy": "q.npy"}}}))


@pytest.mark.parametrize(
    "contents",
    [
        npy_bytes(GOOD_HEADER),
        npy_bytes(GOOD_HEADER, (2, 0)),
        npy_bytes(GOOD_HEADER, (3, 0)),
        npy_bytes(b'{"shape":(2,5,4,8,),"fortran_order":False,"descr":"<f4"}'),
    ],
)
def test_every_version_is_read(scoremod, tmp_path, contents):
    done = run_with_q(scoremod, tmp_path, contents)
    assert done.returncode == 0, done.stderr


HUGE = b"{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775807, 9223372036854775807), }"

BAD_ARRAYS = {
    "empty": (b"", "expected 8 bytes of a .npy file's start"),
    "no_magic": (b"PK\x03\x04" + bytes(100), "expected a .npy file, found other contents"),
    "version": (npy_bytes(GOOD_HEADER, (4, 0)), "found 4.0"),
    "minor_version": (npy_bytes(GOOD_HEADER, (1, 7)), "found 1.7"),
    "cut_length": (b"\x93NUMPY\x01\x00\x76", "the header's length"),
    "cut_header": (npy_bytes(GOOD_HEADER)[:40], "bytes of the header"),
    "long_header": (b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "expected a header of at most"),
    "cut_data": (npy_bytes(GOOD_HEADER)[:-1], "is it truncated?"),
    "more_data": (npy_bytes(GOOD_HEADER) + b"\x00", "found more bytes"),
    "shape": (npy_bytes(GOOD_HEADER.replace(b"5", b"6")), "expected the shape (2, 5, 4, 8), found (2, 6, 4, 8)"),
    "rank": (npy_bytes(GOOD_HEADER.replace(b"(2, 5, 4, 8)", b"(320,)")), "found (320,)"),
    "scalar": (npy_bytes(GOOD_HEADER.replace(b"(2, 5, 4, 8)", b"()")), "found ()"),
    "huge_shape": (npy_bytes(HUGE), "expected the shape"),
    "overflowing_shape": (npy_bytes(HUGE.replace(b"07, 9", b"0799999, 9")), "expected a .npy header"),
    "negative_shape": (npy_bytes(GOOD_HEADER.replace(b"(2", b"(-2")), "expected a .npy header"),
    "float64": (npy_bytes(GOOD_HEADER.replace(b"<f4", b"<f8")), "expected elements of type '<f4' (f32), found '<f8'"),
    "big_endian": (npy_bytes(GOOD_HEADER.replace(b"<f4", b">f4")), "found '>f4'"),
    "object": (npy_bytes(GOOD_HEADER.replace(b"<f4", b"|O")), "found '|O'"),
    "record": (npy_bytes(GOOD_HEADER.replace(b"'<f4'", b"[('a', '<f4')]")), "expected a .npy header"),
    "fortran": (npy_bytes(GOOD_HEADER.replace(b"False", b"True")), "expected C order"),
    "missing_key": (npy_bytes(b"{'descr': '<f4', 'shape': (2, 5, 4, 8)}"), "expected a .npy header"),
    "repeated_key": (npy_bytes(GOOD_HEADER.replace(b"{", b"{'descr': '<f4', ")), "expected a .npy header"),
    "unknown_key": (npy_bytes(GOOD_HEADER.replace(b"{", b"{'x': 1, ")), "expected a .npy header"),
    "no_dictionary": (npy_bytes(b"__import__('os')"), "expected a .npy header"),
    "nul_bytes": (npy_bytes(bytes(60)), "expected a .npy header"),
    "text_after": (npy_bytes(GOOD_HEADER + b"x"), "expected a .npy header"),
    "escape_codes": (npy_bytes(GOOD_HEADER.replace(b"<f4", b"\x1b[2J\xff")), "found '?[2J?'"),
}


@pytest.mark.parametrize("name", BAD_ARRAYS)
def test_bad_arrays_are_refused(scoremod, tmp_path, name):
    contents, fragment = BAD_ARRAYS[name]
    done = run_with_q(scoremod, tmp_path, contents)
    assert done.returncode == 2, (done.returncode, done.stderr)
    assert done.stderr.startswith("scoremod: q.npy: ") and fragment in done.stderr


def test_bools_are_zero_or_one(scoremod, tmp_path):
    np.save(tmp_path / "m.npy", np.array([0, 1, 2, 1], np.uint8).view(np.bool_))
    problem = {**SIZES, "program": "operand m: bool [h]\nvalue = score\nkeep = m", "inputs": {"m": {"npy": "m.npy"}}}
    done = scoremod("run", "-", input=json.dumps(problem))
    assert done.returncode == 2 and "expected bools of 0 or 1" in done.stderr


def test_paths_are_relative_to_the_problem_file(scoremod, tmp_path):
    (tmp_path / "folder").mkdir()
    np.save(tmp_path / "folder" / "q.npy", Q)
    problem = {**SIZES, "inputs": {"q": {"npy": "q.npy"}}}
    (tmp_path / "folder" / "problem.json").write_text(json.dumps(problem), encoding="utf-8")
    assert scoremod("run", "folder/problem.json").returncode == 0
