#include "problem/packed_layout.hpp"

#include <algorithm>

#include "base/fail.hpp"

namespace scoremod::problem {
namespace {

std::int64_t product(std::int64_t x, std::int64_t y, const std::string& field) {
  std::int64_t result = 0;
  if (__builtin_mul_overflow(x, y, &result))
    fail_argument(field, ": expected packed tensors of less than 2^63 bytes; make the sizes smaller");
  return result;
}

bool same(const TensorShape& x, const TensorShape& y) {
  return x.batch == y.batch && x.heads == y.heads && x.sequence == y.sequence && x.dim == y.dim;
}

}  // namespace

const std::vector<std::string>& packed_layout_names() {
  static const std::vector<std::string> names{"BS3HD", "BSH3D", "SB3HD", "SBH3D", "BS2HD", "BSH2D", "SB2HD", "SBH2D"};
  return names;
}

std::optional<PackedLayout> parse_packed_layout(std::string_view name) {
  if (std::ranges::find(packed_layout_names(), name) == packed_layout_names().end()) return std::nullopt;
  PackedLayout packed;
  packed.layout = name.starts_with('B') ? Layout::kBSHD : Layout::kSBHD;
  packed.within_heads = name[2] == 'H';
  packed.parts = name[packed.within_heads ? 3 : 2] - '0';
  return packed;
}

TensorLayout part_of(const PackedLayout& packed, const AttentionProblem& problem, TensorRole role,
                     const std::string& field) {
  const TensorShape shape = memory_shape_of(problem, role);
  const TensorShape q = shape_of(problem, TensorRole::kQ), k = shape_of(problem, TensorRole::kK),
                    v = shape_of(problem, TensorRole::kV);
  if (!same(k, v) || (packed.parts == 3 && !same(q, k))) {
    fail_argument(
        field, ": expected ", packed.parts == 3 ? "q, k and v" : "k and v",
        " of one shape in a packed layout: ", packed.parts == 3 ? "heads_kv = heads_q, seq_kv = seq_q and " : "",
        "dim_v = dim_qk; found others; give each tensor strides of its own");
  }
  const std::int64_t head_row = product(packed.parts, shape.dim, field);
  const std::int64_t row = product(head_row, shape.heads, field);
  Strides strides;
  strides.head = packed.within_heads ? head_row : shape.dim;
  if (packed.layout == Layout::kBSHD) {
    strides.sequence = row;
    strides.batch = product(row, shape.sequence, field);
  } else {
    strides.batch = row;
    strides.sequence = product(row, shape.batch, field);
  }
  return {packed.layout, strides};
}

}  // namespace scoremod::problem
