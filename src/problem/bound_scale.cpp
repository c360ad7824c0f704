#include "problem/bound_scale.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "ir/builder.hpp"

namespace scoremod::problem {

bool reads_scale(const Program& program) {
  return std::ranges::find(program.nodes(), Op::kScale, &Node::op) != program.nodes().end();
}

AttentionProblem with_scale_as_constant(AttentionProblem problem) {
  const Program& program = problem.program;
  ir::Builder builder;
  for (const OperandDecl& decl : program.operands()) builder.declare(decl);
  std::vector<NodeId> ids;
  for (const Node& node : program.nodes()) {
    std::array<NodeId, kMaxArgs> args = node.args;
    for (std::size_t i = 0; i < node.arg_count; ++i) args[i] = ids[node.args[i]];
    ids.push_back(node.op == Op::kScale ? builder.constant(problem.effective_scale())
                                        : builder.remake(node, std::span(args.data(), node.arg_count)));
  }
  const NodeId keep = program.keep();
  problem.program = builder.finish(ids[program.value()], keep == kNoNode ? kNoNode : ids[keep]);
  return problem;
}

}  // namespace scoremod::problem
