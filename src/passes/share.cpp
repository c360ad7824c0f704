#include "passes/share.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>
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

/// Nodes by their height above the leaves.
std::vector<std::vector<NodeId>> by_height(const Program& program) {
  std::vector<std::size_t> height(program.nodes().size());
  std::vector<std::vector<NodeId>> levels;
  for (NodeId id = 0; id < program.nodes().size(); ++id) {
    for (const NodeId arg : ir::args_of(program.nodes()[id])) height[id] = std::max(height[id], height[arg] + 1);
    if (levels.size() <= height[id]) levels.resize(height[id] + 1);
    levels[height[id]].push_back(id);
  }
  return levels;
}

/// Rebuilds the program one height after the other, and ranks the new nodes by structure alone. It ignores the
/// numbering, which depends on the order of arguments.
class Sharer {
 public:
  explicit Sharer(const Program& program) : program_(program), shared_(program.nodes().size()) {
    for (const OperandDecl& decl : program.operands()) builder_.declare(decl);
  }

  Program run() {
    for (const std::vector<NodeId>& level : by_height(program_)) {
      const auto first = static_cast<NodeId>(builder_.node_count());
      for (const NodeId id : level) shared_[id] = remake(program_.nodes()[id]);
      rank_from(first);
    }
    std::vector<Root> roots = program_.roots();
    for (Root& root : roots) {
      root.node = shared_[root.node];
      for (NodeId& index : root.indices) {
        if (index != kNoNode) index = shared_[index];
      }
    }
    return builder_.finish(roots);
  }

 private:
  NodeId remake(const Node& node) {
    std::array<NodeId, kMaxArgs> args{};
    for (std::size_t i = 0; i < node.arg_count; ++i) args[i] = shared_[node.args[i]];
    const auto swapped = with_swapped_arguments(node);
    if (swapped && comes_before(args[1], args[0])) return builder_.make(*swapped, {args[1], args[0]});
    return builder_.remake(node, std::span(args).first(node.arg_count));
  }

  bool comes_before(NodeId x, NodeId y) const {
    const bool x_constant = builder_.node(x).op == Op::kConstant;
    const bool y_constant = builder_.node(y).op == Op::kConstant;
    return std::pair(x_constant, rank_[x]) < std::pair(y_constant, rank_[y]);
  }

  /// Ranks the nodes that were made since `first`, which are all of one height, above all before.
  void rank_from(NodeId first) {
    std::vector<NodeId> made;
    for (NodeId id = first; id < builder_.node_count(); ++id) made.push_back(id);
    std::ranges::sort(made, {}, [&](NodeId id) {
      const Node& node = builder_.node(id);
      std::array<std::size_t, kMaxArgs> args{};
      for (std::size_t i = 0; i < node.arg_count; ++i) args[i] = rank_[node.args[i]];
      return std::tuple(node.op, node.type, node.payload, args);
    });
    rank_.resize(builder_.node_count());
    for (std::size_t i = 0; i < made.size(); ++i) rank_[made[i]] = first + i;
  }

  const Program& program_;
  ir::Builder builder_;
  std::vector<NodeId> shared_;     ///< of the program's nodes, the builder's
  std::vector<std::size_t> rank_;  ///< of the builder's nodes
};

}  // namespace

Program share(const Program& program) { return Sharer(program).run(); }

}  // namespace scoremod::passes
