#include "passes/normalize_mask.hpp"

#include "base/fail.hpp"
#include "ir/builder.hpp"
#include "ir/verify.hpp"
#include "passes/conjunction.hpp"
#include "passes/hoist_mask.hpp"

namespace scoremod::passes {
namespace {

/// The pass makes up to three nodes for each; a program that comes near the builder's limit is left as it is.
constexpr std::size_t kMaxNodesToNormalize = ir::kMaxNodes / 8;

/// Copies a program's nodes, which keep their order; returns their ids in the builder.
std::vector<NodeId> copy_nodes(const Program& program, ir::Builder& builder) {
  for (const OperandDecl& decl : program.operands()) builder.declare(decl);
  std::vector<NodeId> ids;
  for (const Node& node : program.nodes()) {
    std::array<NodeId, kMaxArgs> args = node.args;
    for (std::size_t i = 0; i < node.arg_count; ++i) args[i] = ids[node.args[i]];
    ids.push_back(builder.remake(node, std::span(args.data(), node.arg_count)));
  }
  return ids;
}

}  // namespace

Program normalize_mask(const Program& program) {
  if (ir::is_derivative(program)) fail_bug("normalize_mask takes a user's program, found a derivative");
  if (program.nodes().size() > kMaxNodesToNormalize) return program;
  ir::Builder builder;
  const std::vector<NodeId> ids = copy_nodes(program, builder);
  const MaskedValue hoisted = hoist_mask(builder, ids[program.value()]);
  NodeId keep = program.keep() == kNoNode ? kNoNode : ids[program.keep()];
  if (hoisted.keep != kNoNode) {
    keep = keep == kNoNode ? hoisted.keep : builder.make(Op::kAnd, {keep, hoisted.keep});
  }
  if (keep != kNoNode) keep = conjunction_of(builder, conjunction_terms(builder, keep));
  return builder.finish(hoisted.value, keep);
}

}  // namespace scoremod::passes
