#include "passes/conjunction.hpp"

#include <algorithm>
#include <array>
#include <tuple>
#include <unordered_set>

#include "ir/canonical.hpp"

namespace scoremod::passes {
namespace {

enum Sign : std::size_t { kPositive = 0, kNegative = 1 };
Sign flipped(Sign sign) { return sign == kPositive ? kNegative : kPositive; }

bool is_constant(const Node& node, bool value) {
  return node.op == Op::kConstant && node.type == Type::kBool && ir::constant_bool(node) == value;
}

Op negated(Op comparison) {
  switch (comparison) {
    case Op::kEq: return Op::kNe;
    case Op::kNe: return Op::kEq;
    case Op::kLt: return Op::kGe;
    case Op::kLe: return Op::kGt;
    case Op::kGt: return Op::kLe;
    default: return Op::kLt;
  }
}

/// Rewrites a bool node and, where needed, its negation, from the leaves up. Not recursive: programs may be very deep.
class NegationNormalForm {
 public:
  NegationNormalForm(ir::Builder& builder, NodeId root) : builder_(builder), needed_(root + 1), made_(root + 1) {}

  NodeId run() {
    const auto root = static_cast<NodeId>(needed_.size() - 1);
    need(root, kPositive);
    for (NodeId id = root + 1; id-- > 0;) {
      for (const Sign sign : {kPositive, kNegative}) {
        if (needed_[id][sign]) need_arguments(id, sign);
      }
    }
    for (NodeId id = 0; id <= root; ++id) {
      for (const Sign sign : {kPositive, kNegative}) {
        if (needed_[id][sign]) made_[id][sign] = make(id, sign);
      }
    }
    return made_[root][kPositive];
  }

 private:
  void need(NodeId id, Sign sign) { needed_[id][sign] = true; }

  void need_arguments(NodeId id, Sign sign) {
    const Node& node = builder_.node(id);
    switch (node.op) {
      case Op::kAnd:
      case Op::kOr:
        need(node.args[0], sign);
        need(node.args[1], sign);
        break;
      case Op::kXor:
        need(node.args[0], kPositive);
        need(node.args[1], kPositive);
        break;
      case Op::kNot: need(node.args[0], flipped(sign)); break;
      case Op::kSelect:
        need(node.args[0], kPositive);
        need(node.args[0], kNegative);
        need(node.args[1], sign);
        need(node.args[2], sign);
        break;
      case Op::kToBool:
        if (builder_.node(node.args[0]).type == Type::kBool) need(node.args[0], sign);
        break;
      default: break;
    }
  }

  NodeId make(NodeId id, Sign sign) {
    const Node node = builder_.node(id);
    switch (node.op) {
      case Op::kConstant: return builder_.constant(ir::constant_bool(node) == (sign == kPositive));
      case Op::kAnd:
      case Op::kOr:
        return (node.op == Op::kAnd) == (sign == kPositive)
                   ? both(made(node.args[0], sign), made(node.args[1], sign))
                   : either(made(node.args[0], sign), made(node.args[1], sign));
      case Op::kXor: return exactly_one(made(node.args[0], kPositive), made(node.args[1], kPositive), sign);
      case Op::kNot: return made(node.args[0], flipped(sign));
      case Op::kSelect: return choice(node, sign);
      case Op::kToBool: return test(node, sign);
      case Op::kEq:
      case Op::kNe:
      case Op::kLt:
      case Op::kLe:
      case Op::kGt:
      case Op::kGe: return comparison(id, node, sign);
      default: return sign == kPositive ? id : builder_.make(Op::kNot, {id});
    }
  }

  NodeId made(NodeId id, Sign sign) const { return made_[id][sign]; }

  NodeId both(NodeId x, NodeId y) {
    if (is_constant(builder_.node(x), false) || is_constant(builder_.node(y), true) || x == y) return x;
    if (is_constant(builder_.node(y), false) || is_constant(builder_.node(x), true)) return y;
    return builder_.make(Op::kAnd, {x, y});
  }

  NodeId either(NodeId x, NodeId y) {
    if (is_constant(builder_.node(x), true) || is_constant(builder_.node(y), false) || x == y) return x;
    if (is_constant(builder_.node(y), true) || is_constant(builder_.node(x), false)) return y;
    return builder_.make(Op::kOr, {x, y});
  }

  NodeId exactly_one(NodeId x, NodeId y, Sign sign) {
    const NodeId node = builder_.make(Op::kXor, {x, y});
    return sign == kPositive ? node : builder_.make(Op::kNot, {node});
  }

  NodeId choice(const Node& node, Sign sign) {
    const NodeId yes = made(node.args[0], kPositive);
    const NodeId no = made(node.args[0], kNegative);
    const NodeId x = made(node.args[1], sign);
    const NodeId y = made(node.args[2], sign);
    if (is_constant(builder_.node(yes), true) || x == y) return x;
    if (is_constant(builder_.node(yes), false)) return y;
    if (is_constant(builder_.node(x), true)) return either(yes, y);
    if (is_constant(builder_.node(x), false)) return both(no, y);
    if (is_constant(builder_.node(y), true)) return either(no, x);
    if (is_constant(builder_.node(y), false)) return both(yes, x);
    return builder_.make(Op::kSelect, {yes, x, y});
  }

  /// bool(x) is x != 0, also for NaN.
  NodeId test(const Node& node, Sign sign) {
    const Type type = builder_.node(node.args[0]).type;
    if (type == Type::kBool) return made(node.args[0], sign);
    const NodeId zero = type == Type::kF32 ? builder_.constant(0.0f) : builder_.constant(std::int32_t{0});
    return builder_.make(sign == kPositive ? Op::kNe : Op::kEq, {node.args[0], zero});
  }

  NodeId comparison(NodeId id, const Node& node, Sign sign) {
    if (sign == kPositive) return id;
    const bool ordering = node.op != Op::kEq && node.op != Op::kNe;
    if (ordering && builder_.node(node.args[0]).type == Type::kF32) return builder_.make(Op::kNot, {id});
    return builder_.make(negated(node.op), {node.args[0], node.args[1]});
  }

  ir::Builder& builder_;
  std::vector<std::array<bool, 2>> needed_;
  std::vector<std::array<NodeId, 2>> made_;
};

/// Which side of an i32 comparison, if any, is a min or max whose parts must both satisfy it: max(x, y) <= z, x >=
/// max(y, z), ...
int divisible_side(const ir::Builder& builder, const Node& node) {
  const bool is_less = node.op == Op::kLt || node.op == Op::kLe;
  const bool is_greater = node.op == Op::kGt || node.op == Op::kGe;
  if ((!is_less && !is_greater) || builder.node(node.args[0]).type != Type::kI32) return -1;
  if (builder.node(node.args[0]).op == (is_less ? Op::kMax : Op::kMin)) return 0;
  return builder.node(node.args[1]).op == (is_less ? Op::kMin : Op::kMax) ? 1 : -1;
}

/// Puts terms in an order that depends on their structure only: terms without operands first, then by depth.
class StructuralOrder {
 public:
  explicit StructuralOrder(const ir::Builder& builder) : keys_(builder.node_count()) {
    for (NodeId id = 0; id < keys_.size(); ++id) {
      Node node = builder.node(id);
      Key& key = keys_[id];
      key.reads = node.op == Op::kOperand || node.op == Op::kGather;
      for (std::size_t i = 0; i < node.arg_count; ++i) {
        const Key& arg = keys_[node.args[i]];
        key.reads = key.reads || arg.reads;
        key.depth = std::max(key.depth, arg.depth + 1);
        node.args[i] = static_cast<NodeId>(arg.hash);
      }
      key.hash = ir::hash_of(node);
    }
  }

  bool operator()(NodeId x, NodeId y) const {
    const auto rank = [this](NodeId id) { return std::tuple(keys_[id].reads, keys_[id].depth, keys_[id].hash, id); };
    return rank(x) < rank(y);
  }

 private:
  struct Key {
    bool reads = false;
    std::uint32_t depth = 0;
    std::uint64_t hash = 0;
  };
  std::vector<Key> keys_;
};

}  // namespace

std::vector<NodeId> conjunction_terms(ir::Builder& builder, NodeId node) {
  std::vector<NodeId> pending{NegationNormalForm(builder, node).run()};
  std::vector<NodeId> terms;
  std::unordered_set<NodeId> seen;
  while (!pending.empty()) {
    const NodeId id = pending.back();
    pending.pop_back();
    if (!seen.insert(id).second) continue;
    const Node term = builder.node(id);
    if (is_constant(term, true)) continue;
    if (is_constant(term, false)) return {id};
    if (term.op == Op::kAnd) {
      pending.push_back(term.args[0]);
      pending.push_back(term.args[1]);
      continue;
    }
    const int side = divisible_side(builder, term);
    if (side < 0) {
      terms.push_back(id);
      continue;
    }
    const Node parts = builder.node(term.args[static_cast<std::size_t>(side)]);
    for (const NodeId part : ir::args_of(parts)) {
      pending.push_back(side == 0 ? builder.make(term.op, {part, term.args[1]})
                                  : builder.make(term.op, {term.args[0], part}));
    }
  }
  std::sort(terms.begin(), terms.end(), StructuralOrder(builder));
  return terms;
}

NodeId conjunction_of(ir::Builder& builder, std::span<const NodeId> terms) {
  NodeId all = kNoNode;
  for (const NodeId term : terms) all = all == kNoNode ? term : builder.make(Op::kAnd, {all, term});
  return all;
}

}  // namespace scoremod::passes
