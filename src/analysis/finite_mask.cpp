#include "analysis/finite_mask.hpp"

#include <cmath>

#include "ir/builder.hpp"

namespace scoremod::analysis {
namespace {

constexpr float kMaskLike = -0x1p15f;

bool is_mask_like(const Node& node) {
  if (node.op != Op::kConstant || node.type != Type::kF32) return false;
  const float value = ir::constant_f32(node);
  return std::isfinite(value) && value <= kMaskLike;
}

}  // namespace

std::optional<float> finite_mask(const Program& program) {
  const std::vector<Node>& nodes = program.nodes();
  for (const Node& node : nodes) {
    if (node.op != Op::kSelect) continue;
    for (const NodeId choice : {node.args[1], node.args[2]}) {
      if (is_mask_like(nodes[choice])) return ir::constant_f32(nodes[choice]);
    }
  }
  return std::nullopt;
}

}  // namespace scoremod::analysis
