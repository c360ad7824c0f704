"""The JSON Schema and the parser accept and refuse the same files, as far as a schema can say what is wrong."""

import copy
import json

import jsonschema
import pytest

from built_command import PROBLEMS, ROOT

SCHEMA = json.loads((ROOT / "docs" / "reference" / "problem.schema.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)

FULL = {
    "$schema": "problem.schema.json",
    "description": "every field",
    "batch": 2,
    "heads_q": 4,
    "heads_kv": 2,
    "seq_q": 5,
    "seq_kv": 7,
    "dim_qk": 8,
    "dim_v": 6,
    "dtype": "bf16",
    "layout": "SBHD",
    "q": "BHSD",
    "k": {"layout": "BSHD", "strides": {"batch": 1000, "head": 10, "sequence": 100, "dim": 1}},
    "v": {"layout": "SBHD"},
    "o": {},
    "dtype_o": "f32",
    "d_o": "BHSD",
    "dq": {"layout": "BSHD"},
    "dk": "SBHD",
    "dv": {"strides": {"batch": 1000, "head": 10, "sequence": 100, "dim": 1}},
    "scale": 0.25,
    "lengths": {"kv": True},
    "sink": "learned",
    "dropout": 0.125,
    "max_logit": True,
    "program": [
        "operand slopes: f32 [h]",
        "operand doc: i32 [b, kv_idx]",
        "table rel: f32 rank 2",
        "value = score + slopes + rel[h, q_idx]",
        "keep = doc == b",
    ],
    "operands": [{"name": "rel", "dtype": "f16", "shape": [4, 9], "strides": [16, 1]}, {"name": "slopes"}],
    "backward": True,
    "stats": False,
    "deterministic": True,
    "seed": 7,
    "inputs": {"k": {"normal": [0, 2.5]}, "slopes": {"values": [0.5, 0.25, 1, -2]}, "doc": {"segments": 3}, "rel": {"uniform": [-1, 1]}},
}
ZOO = {"batch": 1, "heads_q": 4, "seq_q": 8, "dim_qk": 8, "program": {"score_mod": [{"name": "soft_cap", "cap": 30}, "alibi"], "mask_mod": ["causal"]}}
LONE = {"batch": 1, "heads_q": 1, "seq_q": 1, "dim_qk": 1}

REMOVED = object()


def changed(base, path, value):
    """A copy with one place, named as in messages, set to another value or removed."""
    out = copy.deepcopy(base)
    *outer, last = path
    place = out
    for key in outer:
        place = place[key]
    if value is REMOVED:
        del place[last]
    else:
        place[last] = value
    return out


RAGGED = {**LONE, "batch": 2, "seq_q": 8, "seq_kv": 9, "tokens_q": 11, "tokens_kv": 12, "q": "THD", "backward": True}
PAGED = {**LONE, "seq_kv": 9, "lengths": {"kv": True}, "paged": {"block_size": 4, "blocks": 7, "blocks_per_sequence": 3}}

FLOAT8 = {**LONE, "dtype": "e4m3", "dtype_o": "e5m2", "dtype_d_o": "e5m2", "dtype_gradients": "f32", "amax_o": True, "amax_gradients": True, "backward": True}
FLOAT8_CACHE = {**LONE, "dtype": "bf16", "dtype_kv": "e4m3", "operands": [{"name": "descale_k", "shape": [1]}]}

GOOD = {
    "float8": FLOAT8,
    "float8_cache": FLOAT8_CACHE,
    "full": FULL,
    "zoo": ZOO,
    "lone": LONE,
    "ragged": RAGGED,
    "paged": PAGED,
    "program_text": {**LONE, "program": "value = tanh(score)"},
    "integer_scale": {**LONE, "scale": 1},
    "zero_stride_of_one": {**LONE, "q": {"strides": {"batch": 0, "head": 0, "sequence": 0, "dim": 0}}},
}

# Both refuse.
BAD = {
    "list": [],
    "text": "x",
    "null": None,
    **{f"no_{name}": changed(LONE, [name], REMOVED) for name in LONE},
    **{
        f"{name}_{kind}": changed(FULL, [name], value)
        for name in ("batch", "heads_q", "heads_kv", "seq_q", "seq_kv", "dim_qk", "dim_v")
        for kind, value in {"zero": 0, "text": "2", "true": True, "fraction": 2.5, "large": 2**30 + 1}.items()
    },
    # Other sizes may be open.
    **{f"{name}_null": changed(FULL, [name], None) for name in ("dim_qk", "dim_v")},
    "unknown_field": changed(FULL, ["colour"], 1),
    "schema_number": changed(FULL, ["$schema"], 1),
    "description_list": changed(FULL, ["description"], []),
    "dtype_name": changed(FULL, ["dtype"], "float"),
    "dtype_i32": changed(FULL, ["dtype"], "i32"),
    "dtype_gradients_float8": changed(FLOAT8, ["dtype_gradients"], "e4m3"),
    "dtype_kv_bf16": changed(FLOAT8_CACHE, ["dtype_kv"], "bf16"),
    "dtype_d_o_name": changed(FLOAT8, ["dtype_d_o"], "e4m3fn"),
    "amax_text": changed(FLOAT8, ["amax_o"], "yes"),
    "amax_gradients_number": changed(FLOAT8, ["amax_gradients"], 1),
    "layout_name": changed(FULL, ["layout"], "bshd"),
    "tensor_number": changed(FULL, ["q"], 1),
    "tensor_field": changed(FULL, ["v", "stride"], {}),
    "strides_list": changed(FULL, ["k", "strides"], [1, 2, 3, 4]),
    "strides_missing": changed(FULL, ["k", "strides", "head"], REMOVED),
    "strides_field": changed(FULL, ["k", "strides", "heads"], 1),
    "stride_negative": changed(FULL, ["k", "strides", "head"], -10),
    "stride_fraction": changed(FULL, ["k", "strides", "head"], 10.5),
    "scale_text": changed(FULL, ["scale"], "1"),
    "scale_large": changed(FULL, ["scale"], 1e39),
    "program_number": changed(FULL, ["program"], 1),
    "program_line": changed(FULL, ["program", 0], 1),
    "modifier_list": changed(ZOO, ["program", "score_mods"], []),
    "modifier_text": changed(ZOO, ["program", "score_mod"], "alibi"),
    "modifier_number": changed(ZOO, ["program", "score_mod", 1], 1),
    "modifier_unnamed": changed(ZOO, ["program", "score_mod", 0, "name"], REMOVED),
    "parameter_list": changed(ZOO, ["program", "score_mod", 0, "cap"], [1]),
    "operands_object": changed(FULL, ["operands"], {}),
    "operand_text": changed(FULL, ["operands", 1], "slopes"),
    "operand_unnamed": changed(FULL, ["operands", 1, "name"], REMOVED),
    "operand_field": changed(FULL, ["operands", 1, "size"], 4),
    "operand_dtype": changed(FULL, ["operands", 0, "dtype"], "f64"),
    "operand_shape_text": changed(FULL, ["operands", 0, "shape"], "4"),
    "operand_shape_zero": changed(FULL, ["operands", 0, "shape", 1], 0),
    "operand_shape_rank": changed(FULL, ["operands", 0, "shape"], [1, 1, 1, 1, 1]),
    "operand_stride_negative": changed(FULL, ["operands", 0, "strides", 0], -16),
    "backward_number": changed(FULL, ["backward"], 1),
    "stats_text": changed(FULL, ["stats"], "true"),
    "seed_negative": changed(FULL, ["seed"], -1),
    "seed_fraction": changed(FULL, ["seed"], 0.5),
    "seed_large": changed(FULL, ["seed"], 2**63),
    "inputs_list": changed(FULL, ["inputs"], []),
    "input_text": changed(FULL, ["inputs", "k"], "k.npy"),
    "input_empty": changed(FULL, ["inputs", "k"], {}),
    "input_two": changed(FULL, ["inputs", "k", "npy"], "k.npy"),
    "input_field": changed(FULL, ["inputs", "k"], {"gauss": [0, 1]}),
    "npy_number": changed(FULL, ["inputs", "k"], {"npy": 1}),
    "npy_empty": changed(FULL, ["inputs", "k"], {"npy": ""}),
    "values_number": changed(FULL, ["inputs", "slopes"], {"values": 1}),
    "values_text": changed(FULL, ["inputs", "slopes", "values", 0], "1"),
    "normal_one": changed(FULL, ["inputs", "k", "normal"], [0]),
    "uniform_three": changed(FULL, ["inputs", "rel", "uniform"], [0, 1, 2]),
    "segments_zero": changed(FULL, ["inputs", "doc", "segments"], 0),
}

# Only the parser refuses: what is wrong lies between fields, in the program, or in how a number is written.
BEYOND_SCHEMA = {
    "inputs_beside_open_sizes": changed(FULL, ["batch"], None),
    "float8_output_of_others": changed(FULL, ["dtype_o"], "e4m3"),
    "amax_of_others": {**LONE, "amax_o": True},
    "amax_gradients_of_others": {**LONE, "amax_gradients": True, "backward": True},
    "amax_gradients_of_forwards": changed(FLOAT8, ["backward"], False),
    "head_ratio": changed(FULL, ["heads_kv"], 3),
    "size_written_as_float": changed(FULL, ["batch"], 2.0),
    "overlap": changed(FULL, ["k", "strides", "sequence"], 10),
    "program_syntax": changed(FULL, ["program", 3], "value = scores"),
    "modifier_name": changed(ZOO, ["program", "score_mod", 1], "alibbi"),
    "modifier_kind": changed(ZOO, ["program", "mask_mod"], ["alibi"]),
    "parameter_name": changed(ZOO, ["program", "score_mod", 0, "cup"], 1),
    "parameter_bounds": changed(ZOO, ["program", "score_mod", 0, "cap"], -1),
    "operand_unknown": changed(FULL, ["operands", 1, "name"], "slope"),
    "operand_shape": changed(FULL, ["operands", 1, "shape"], [2]),
    "input_unknown": changed(FULL, ["inputs", "x"], {"normal": [0, 1]}),
    "values_count": changed(FULL, ["inputs", "slopes", "values"], [1]),
    "uniform_swapped": changed(FULL, ["inputs", "rel", "uniform"], [1, -1]),
}


def parser_accepts(scoremod, problem):
    done = scoremod("explain", "-", input=json.dumps(problem))
    assert done.returncode in (0, 2), (done.returncode, done.stderr)
    return done.returncode == 0


def test_schema_is_a_schema():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("path", PROBLEMS, ids=lambda path: path.stem)
def test_examples_fit_the_schema_they_name(path):
    problem = json.loads(path.read_text(encoding="utf-8"))
    VALIDATOR.validate(problem)
    assert (path.parent / problem["$schema"]).resolve() == ROOT / "docs" / "reference" / "problem.schema.json"


@pytest.mark.parametrize("name", GOOD)
def test_both_accept(scoremod, name):
    VALIDATOR.validate(GOOD[name])
    assert parser_accepts(scoremod, GOOD[name])


@pytest.mark.parametrize("name", BAD)
def test_both_refuse(scoremod, name):
    assert not VALIDATOR.is_valid(BAD[name])
    assert not parser_accepts(scoremod, BAD[name])


@pytest.mark.parametrize("name", BEYOND_SCHEMA)
def test_the_parser_refuses_more(scoremod, name):
    VALIDATOR.validate(BEYOND_SCHEMA[name])
    assert not parser_accepts(scoremod, BEYOND_SCHEMA[name])


def test_schema_knows_every_field_of_the_parser(scoremod):
    """A message of the parser lists its fields; the schema has the same."""
    message = scoremod("explain", "-", input='{"no_such_field": 1}').stderr
    fields = {part for part in message.split("'")[1::2] if part != "no_such_field"}
    assert fields == set(SCHEMA["properties"])
