#include "passes/drop_surrogates.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "ir/builder.hpp"

namespace scoremod::passes {

bool has_surrogates(const Program& program) {
  return std::ranges::find(program.nodes(), Op::kSurrogate, &Node::op) != program.nodes().end();
}

Program drop_surrogates(const Program& program) {
  if (!has_surrogates(program)) return program;
  ir::Builder builder;
  for (const OperandDecl& decl : program.operands()) builder.declare(decl);
  std::vector<NodeId> ids;
  for (const Node& node : program.nodes()) {
    std::array<NodeId, kMaxArgs> args = node.args;
    for (std::size_t i = 0; i < node.arg_count; ++i) args[i] = ids[node.args[i]];
    ids.push_back(node.op == Op::kSurrogate ? args[0] : builder.remake(node, std::span(args.data(), node.arg_count)));
  }
  std::vector<Root> roots = program.roots();
  for (Root& root : roots) {
    root.node = ids[root.node];
    for (NodeId& index : root.indices) index = index == kNoNode ? kNoNode : ids[index];
  }
  return builder.finish(roots);
}

}  // namespace scoremod::passes
