#include "analysis/dependence.hpp"

#include "ir/builder.hpp"

namespace scoremod::analysis {

std::vector<Dependence> dependences(const Program& program) {
  std::vector<Dependence> out;
  for (const Node& node : program.nodes()) {
    Dependence d;
    for (const NodeId arg : ir::args_of(node)) {
      for (std::size_t i = 0; i < d.axes.size(); ++i) d.axes[i] = d.axes[i] || out[arg].axes[i];
      d.score = d.score || out[arg].score;
    }
    if (node.op == Op::kScore || node.op == Op::kUpstream) d.score = true;
    if (node.op >= Op::kBatchIdx && node.op <= Op::kKeyIdx) {
      d.axes[static_cast<std::size_t>(node.op) - static_cast<std::size_t>(Op::kBatchIdx)] = true;
    }
    if (node.op == Op::kOperand) d.axes = program.operands()[node.payload].axes;
    out.push_back(d);
  }
  return out;
}

}  // namespace scoremod::analysis
