#pragma once

#include <string>

namespace scoremod {

/// A problem file with every field and its explicit value.
inline constexpr const char* kFull = R"({
  "$schema": "problem.schema.json",
  "description": "every field",
  "batch": 2, "heads_q": 4, "heads_kv": 2, "seq_q": 5, "seq_kv": 7, "dim_qk": 8, "dim_v": 6,
  "dtype": "bf16",
  "dtype_o": "f32",
  "d_o": "BHSD",
  "layout": "SBHD",
  "q": "BHSD",
  "k": {"layout": "BSHD", "strides": {"batch": 1000, "head": 10, "sequence": 100, "dim": 1}},
  "dv": {"strides": {"batch": 1000, "head": 10, "sequence": 100, "dim": 1}},
  "scale": 0.25,
  "lengths": {"kv": true},
  "sink": "learned",
  "dropout": 0.125,
  "dropout_keys": true,
  "given_deltas": true,
  "program": ["operand slopes: f32 [h]", "operand doc: i32 [b, kv_idx]", "operand allowed: bool [q_idx, kv_idx]",
              "table rel: f32 rank 2", "value = score + slopes + rel[h, q_idx]", "keep = allowed & doc == b"],
  "operands": [
    {"name": "rel", "dtype": "f16", "shape": [4, 9], "strides": [16, 1]},
    {"name": "slopes", "dtype": "bf16", "gradient": false}
  ],
  "backward": true,
  "stats": true,
  "max_logit": true,
  "index_offsets": true,
  "deterministic": true,
  "seed": 7,
  "inputs": {
    "q": {"npy": "q.npy"},
    "k": {"normal": [0, 2.5]},
    "slopes": {"values": [0.5, 0.25, 1, -2]},
    "doc": {"segments": 3},
    "rel": {"uniform": [-1, 1]},
    "allowed": {"values": [true, false, true, true, true, true, true, true, true, true, true, true, true, true, true, true, true,
                           true, true, true, true, true, true, true, true, true, true, true, true, true, true, true, true, true,
                           true]}
  }
})";

/// A copy with a part of it replaced, which must be there.
std::string replaced(const std::string& from, const std::string& to);

}  // namespace scoremod
