#pragma once

#include <array>
#include <initializer_list>
#include <optional>
#include <span>
#include <vector>

#include "ir/builder.hpp"
#include "passes/simplify.hpp"

namespace scoremod::passes {

/// Makes simplified nodes. Rules build with make(), so that nothing is left to simplify below or at the node that it
/// returns.
class Rewriter {
 public:
  Rewriter(std::span<const OperandDecl> operands, const RuleObserver& observer);

  /// The node of this op and arguments, or whatever simpler one has the same value.
  NodeId make(Op op, std::initializer_list<NodeId> args) { return make(op, std::span(args.begin(), args.size())); }
  NodeId make(Op op, std::span<const NodeId> args);
  /// Remakes a node of another program.
  NodeId remake(const Node& node, std::span<const NodeId> args);
  template <class T>
  NodeId constant(T value) {
    return builder_.constant(value);
  }
  Program finish(std::span<const Root> roots) const { return builder_.finish(roots); }

  /// By value: nodes move when others are made.
  Node node(NodeId id) const { return builder_.node(id); }
  Type type(NodeId id) const { return builder_.node(id).type; }
  bool is(NodeId id, Op op) const { return builder_.node(id).op == op; }
  bool is_constant(NodeId id) const { return is(id, Op::kConstant); }
  /// The value of a constant of this type; empty for any other node.
  std::optional<float> f32(NodeId id) const;
  std::optional<std::int32_t> i32(NodeId id) const;
  std::optional<bool> boolean(NodeId id) const;
  /// True for the constant with exactly this value: -0.0 is not 0.0.
  bool is_f32(NodeId id, float value) const;
  bool is_i32(NodeId id, std::int32_t value) const { return i32(id) == value; }
  bool is_bool(NodeId id, bool value) const { return boolean(id) == value; }

 private:
  NodeId fold(const Node& node);
  NodeId apply_rules(const Node& node);

  ir::Builder builder_;
  const RuleObserver& observer_;
};

/// One rewrite: `apply` returns a node with the same value as an op on these arguments, or kNoNode where it does not
/// fit. `op` and `argument`, the type of the first argument, select the nodes that it is tried on.
struct Rule {
  const char* name;
  Op op;
  Type argument;
  NodeId (*apply)(Rewriter& rewriter, const Node& node);
};

/// The families, in the order in which they are tried.
std::span<const Rule> order_rules();
std::span<const Rule> f32_rules();
std::span<const Rule> i32_rules();
std::span<const Rule> bool_rules();
std::span<const Rule> comparison_rules();
std::span<const Rule> select_rules();
std::span<const Rule> cast_rules();
/// All of them.
const std::vector<Rule>& rewrite_rules();

}  // namespace scoremod::passes
