#include "backend/cudnn/lowering/merged_bound.hpp"

#include <array>
#include <limits>

#include "ir/builder.hpp"

namespace scoremod::backend::cudnn {
namespace {

/// x <= bound, or x < bound.
struct UpperBound {
  NodeId x = kNoNode;
  NodeId bound = kNoNode;
  bool strict = false;
};

std::optional<UpperBound> upper_bound(const Program& program, NodeId id) {
  const Node& node = program.nodes()[id];
  switch (node.op) {
    case Op::kLt: return UpperBound{node.args[0], node.args[1], true};
    case Op::kLe: return UpperBound{node.args[0], node.args[1], false};
    case Op::kGt: return UpperBound{node.args[1], node.args[0], true};
    case Op::kGe: return UpperBound{node.args[1], node.args[0], false};
    default: return std::nullopt;
  }
}

/// The largest x that a bound by a constant leaves; empty where the bound is none, or leaves nothing.
std::optional<std::int32_t> largest(const Program& program, const UpperBound& bound) {
  const Node& node = program.nodes()[bound.bound];
  if (node.op != Op::kConstant || node.type != Type::kI32) return std::nullopt;
  const std::int32_t constant = ir::constant_i32(node);
  if (!bound.strict) return constant;
  if (constant == std::numeric_limits<std::int32_t>::min()) return std::nullopt;
  return constant - 1;
}

bool is_row_or_key(const Program& program, NodeId id) {
  const Op op = program.nodes()[id].op;
  return op == Op::kQueryIdx || op == Op::kKeyIdx;
}

}  // namespace

std::optional<MergedBound> merged_bound(const Program& program, const Node& node) {
  if (node.op != Op::kOr) return std::nullopt;
  const std::array sides{upper_bound(program, node.args[0]), upper_bound(program, node.args[1])};
  if (!sides[0] || !sides[1] || sides[0]->x != sides[1]->x || !is_row_or_key(program, sides[0]->x)) return std::nullopt;
  for (const std::size_t i : {0u, 1u}) {
    const UpperBound &one = *sides[i], &other = *sides[1 - i];
    const std::optional<std::int32_t> constant = largest(program, one);
    if (constant && !other.strict && is_row_or_key(program, other.bound))
      return MergedBound{other.x, other.bound, *constant};
  }
  return std::nullopt;
}

}  // namespace scoremod::backend::cudnn
