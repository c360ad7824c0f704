#include "analysis/keep_nodes.hpp"

#include "ir/builder.hpp"

namespace scoremod::analysis {

std::vector<bool> keep_nodes(const Program& program) {
  std::vector<bool> needed(program.nodes().size());
  if (program.keep() == kNoNode) return needed;
  needed[program.keep()] = true;
  for (NodeId id = program.keep() + 1; id-- > 0;) {
    if (!needed[id]) continue;
    for (const NodeId arg : ir::args_of(program.nodes()[id])) needed[arg] = true;
  }
  return needed;
}

bool keep_reads_operands(const Program& program) {
  const std::vector<bool> of_keep = keep_nodes(program);
  for (NodeId node = 0; node < of_keep.size(); ++node) {
    const Op op = program.nodes()[node].op;
    if (of_keep[node] && (op == Op::kOperand || op == Op::kGather)) return true;
  }
  return false;
}

}  // namespace scoremod::analysis
