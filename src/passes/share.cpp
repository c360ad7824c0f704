#include "passes/share.hpp"

#include <utility>
#include <vector>

#include "ir/builder.hpp"
#include "ir/op_table.hpp"

namespace scoremod::passes {
namespace {

/// The op that gives the same value when its two arguments change places.
std::optional<Op> with_swapped_arguments(const Node& node) {
  switch (node.op) {
    case Op::kLt: return Op::kGt;
    case Op::kLe: return Op::kGe;
    case Op::kGt: return Op::kLt;
    case Op::kGe: return Op::kLe;
    case Op::kMin:
    case Op::kMax: return node.type == Type::kI32 ? std::optional(node.op) : std::nullopt;
    default: return ir::info(node.op).commutative ? std::optional(node.op) : std::nullopt;
  }
}

}  // namespace

Program share(const Program& program) {
  ir::Builder builder;
  for (const OperandDecl& decl : program.operands()) builder.declare(decl);
  std::vector<NodeId> shared;
  // The canonical numbering is depth first, so that changing places for its order leaves it as it is.
  const auto rank = [&](NodeId id) { return std::pair(builder.node(id).op == Op::kConstant, id); };
  std::array<NodeId, kMaxArgs> args{};
  for (const Node& node : program.nodes()) {
    for (std::size_t i = 0; i < node.arg_count; ++i) args[i] = shared[node.args[i]];
    const auto swapped = with_swapped_arguments(node);
    if (swapped && rank(args[1]) < rank(args[0]))
      shared.push_back(builder.make(*swapped, {args[1], args[0]}));
    else
      shared.push_back(builder.remake(node, std::span(args).first(node.arg_count)));
  }
  std::vector<Root> roots = program.roots();
  for (Root& root : roots) {
    root.node = shared[root.node];
    for (NodeId& index : root.indices) {
      if (index != kNoNode) index = shared[index];
    }
  }
  return builder.finish(roots);
}

}  // namespace scoremod::passes
