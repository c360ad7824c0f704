#include "autodiff/differentiate.hpp"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "autodiff/adjoint.hpp"
#include "autodiff/rules.hpp"
#include "base/fail.hpp"
#include "ir/builder.hpp"
#include "ir/verify.hpp"

namespace scoremod::autodiff {
namespace {

/// Leaves whose adjoints are asked for.
bool is_variable(const Node& node) {
  return node.type == Type::kF32 && (node.op == Op::kScore || node.op == Op::kOperand || node.op == Op::kGather);
}

class Walker {
 public:
  explicit Walker(const Program& program)
      : program_(program), parts_(program.nodes().size()), active_(program.nodes().size()) {
    copy_forward();
    find_active();
  }

  Program run() {
    const NodeId value = program_.value();
    if (active_[value]) parts_[value].push_back({builder_.leaf(Op::kUpstream), {}});
    for (std::size_t id = program_.nodes().size(); id-- > 0;) visit(static_cast<NodeId>(id));
    return finish();
  }

 private:
  /// A canonical program's nodes are distinct and in order, so that each keeps its id in the builder.
  void copy_forward() {
    for (const OperandDecl& decl : program_.operands()) builder_.declare(decl);
    for (NodeId id = 0; id < program_.nodes().size(); ++id) {
      const Node& node = program_.nodes()[id];
      if (builder_.remake(node, ir::args_of(node)) != id) fail_bug("node ", id, " of the program is there twice");
    }
  }

  /// Marks nodes that depend on a variable through differentiable ops: adjoints of all others would be dead code.
  void find_active() {
    for (NodeId id = 0; id < program_.nodes().size(); ++id) {
      const Node& node = program_.nodes()[id];
      active_[id] = is_variable(node);
      for (std::size_t i = 0; i < node.arg_count; ++i) {
        if (is_differentiable(node.op, i) && active_[node.args[i]]) active_[id] = true;
      }
    }
  }

  /// Sums the adjoints from the node's users, and passes the sum on to the arguments.
  void visit(NodeId id) {
    if (parts_[id].empty()) return;
    const Adjoint adjoint = sum(builder_, std::move(parts_[id]));
    const Node& node = program_.nodes()[id];
    if (is_variable(node)) {
      variables_.push_back({id, materialize(builder_, adjoint)});
      return;
    }
    for (std::size_t i = 0; i < node.arg_count; ++i) {
      const NodeId arg = node.args[i];
      if (!active_[arg] || !is_differentiable(node.op, i)) continue;
      const Contribution sent = contribution(builder_, id, adjoint.value, i);
      auto part = follow(builder_, adjoint, sent);
      if (part) parts_[arg].push_back(std::move(*part));
    }
  }

  Program finish() {
    // By operand, and reads of the same operand by node.
    std::ranges::sort(variables_, {}, [&](const Variable& variable) {
      return std::pair(program_.nodes()[variable.leaf].payload, variable.leaf);
    });
    std::vector<Root> roots = program_.roots();
    const std::size_t score = roots.size();
    roots.push_back({RootKind::kScoreAdjoint, kNoNode, 0, kNoIndices});
    for (const Variable& variable : variables_) {
      const Node& leaf = program_.nodes()[variable.leaf];
      if (leaf.op == Op::kScore)
        roots[score].node = variable.adjoint;
      else
        roots.push_back({RootKind::kOperandAdjoint, variable.adjoint, leaf.payload, leaf.args});
    }
    if (roots[score].node == kNoNode) roots[score].node = builder_.constant(0.0f);
    return builder_.finish(roots);
  }

  struct Variable {
    NodeId leaf = kNoNode;
    NodeId adjoint = kNoNode;
  };
  static constexpr std::array<NodeId, kMaxArgs> kNoIndices{kNoNode, kNoNode, kNoNode, kNoNode};

  const Program& program_;
  ir::Builder builder_;
  std::vector<std::vector<Adjoint>> parts_;  ///< by node: the adjoints that its users have sent so far
  std::vector<bool> active_;
  std::vector<Variable> variables_;
};

}  // namespace

Program differentiate(const Program& program) {
  if (ir::is_derivative(program)) {
    fail_argument(
        "expected a program of 'value' and 'keep' to differentiate, found one with 'd_score' or 'accumulate'");
  }
  return Walker(program).run();
}

}  // namespace scoremod::autodiff
