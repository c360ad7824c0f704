#include "ir/copy_program.hpp"

#include <array>
#include <span>

namespace scoremod::ir {

std::vector<NodeId> copy_program(const Program& program, Builder& builder) {
  for (const OperandDecl& decl : program.operands()) builder.declare(decl);
  std::vector<NodeId> ids;
  for (const Node& node : program.nodes()) {
    std::array<NodeId, kMaxArgs> args = node.args;
    for (std::size_t i = 0; i < node.arg_count; ++i) args[i] = ids[node.args[i]];
    ids.push_back(builder.remake(node, std::span(args.data(), node.arg_count)));
  }
  return ids;
}

}  // namespace scoremod::ir
