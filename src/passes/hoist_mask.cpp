#include "passes/hoist_mask.hpp"

#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

namespace scoremod::passes {
namespace {

constexpr double kMaxFloat = std::numeric_limits<float>::max();

/// A bound on an f32 node's magnitude, which also says that it is never NaN or infinite.
using Bound = std::optional<double>;

/// Keeps clear of the largest float, so that roundings on the way cannot overflow.
Bound below_overflow(double bound) { return bound < kMaxFloat / 2 ? Bound(bound) : std::nullopt; }

class Hoister {
 public:
  Hoister(ir::Builder& builder, NodeId root) : builder_(builder), bounds_(root + 1), masked_(root + 1) {}

  MaskedValue run() {
    for (NodeId id = 0; id < bounds_.size(); ++id) {
      const Node node = builder_.node(id);
      masked_[id] = {id, kNoNode};
      if (node.type != Type::kF32) continue;
      bounds_[id] = bound_of(node);
      masked_[id] = split(id, node);
    }
    return masked_.back();
  }

 private:
  Bound bound_of(const Node& node) const {
    switch (node.op) {
      case Op::kConstant: {
        const double value = std::abs(ir::constant_f32(node));
        return value <= kMaxFloat ? Bound(value) : std::nullopt;  // not of NaN or inf
      }
      case Op::kToF32: return builder_.node(node.args[0]).type == Type::kF32 ? bounds_[node.args[0]] : Bound(0x1p31);
      case Op::kNeg:
      case Op::kAbs:
      case Op::kSurrogate:
      case Op::kRelu: return bounds_[node.args[0]];
      case Op::kFloor:
      case Op::kCeil:
      case Op::kRound:
      case Op::kSign: return bounds_[node.args[0]] ? Bound(*bounds_[node.args[0]] + 1) : std::nullopt;
      case Op::kAdd:
      case Op::kSub:
      case Op::kMul:
      case Op::kMin:
      case Op::kMax: return bound_of_pair(node.op, bounds_[node.args[0]], bounds_[node.args[1]]);
      case Op::kSelect: return bound_of_pair(node.op, bounds_[node.args[1]], bounds_[node.args[2]]);
      default: return std::nullopt;
    }
  }

  static Bound bound_of_pair(Op op, const Bound& x, const Bound& y) {
    if (!x || !y) return std::nullopt;
    if (op == Op::kAdd || op == Op::kSub) return below_overflow(*x + *y);
    if (op == Op::kMul) return below_overflow(*x * *y);
    return std::max(*x, *y);
  }

  MaskedValue split(NodeId id, const Node& node) {
    switch (node.op) {
      case Op::kConstant:
        if (ir::constant_f32(node) == -std::numeric_limits<float>::infinity()) return {id, builder_.constant(false)};
        return {id, kNoNode};
      case Op::kSelect: return split_select(id, node);
      case Op::kFloor:
      case Op::kCeil:
      case Op::kRound:
      case Op::kSurrogate:
      case Op::kToF32: return through(id, node, 0);
      case Op::kAdd:
      case Op::kMin:
        if (bounds_[node.args[1]]) return through(id, node, 0);
        return bounds_[node.args[0]] ? through(id, node, 1) : MaskedValue{id, kNoNode};
      case Op::kSub: return bounds_[node.args[1]] ? through(id, node, 0) : MaskedValue{id, kNoNode};
      case Op::kMul:
        if (is_positive_constant(node.args[1])) return through(id, node, 0);
        return is_positive_constant(node.args[0]) ? through(id, node, 1) : MaskedValue{id, kNoNode};
      case Op::kDiv: return is_positive_constant(node.args[1]) ? through(id, node, 0) : MaskedValue{id, kNoNode};
      default: return {id, kNoNode};
    }
  }

  /// The op maps -inf in this argument to -inf whatever the other one holds.
  MaskedValue through(NodeId id, const Node& node, std::size_t arg) {
    const MaskedValue inner = masked_[node.args[arg]];
    if (inner.keep == kNoNode) return {id, kNoNode};
    std::array<NodeId, kMaxArgs> args = node.args;
    args[arg] = inner.value;
    return {builder_.remake(node, std::span(args.data(), node.arg_count)), inner.keep};
  }

  MaskedValue split_select(NodeId id, const Node& node) {
    const NodeId condition = node.args[0];
    const MaskedValue x = masked_[node.args[1]];
    const MaskedValue y = masked_[node.args[2]];
    if (x.keep == kNoNode && y.keep == kNoNode) return {id, kNoNode};
    if (is_false(x.keep) && is_false(y.keep)) return {id, x.keep};
    if (is_false(y.keep)) return {x.value, conjunction(condition, x.keep)};
    if (is_false(x.keep)) return {y.value, conjunction(builder_.make(Op::kNot, {condition}), y.keep)};
    const NodeId always = builder_.constant(true);
    const NodeId keep = builder_.make(
        Op::kSelect, {condition, x.keep == kNoNode ? always : x.keep, y.keep == kNoNode ? always : y.keep});
    const bool is_same = x.value == y.value;
    return {is_same ? x.value : builder_.make(Op::kSelect, {condition, x.value, y.value}), keep};
  }

  NodeId conjunction(NodeId x, NodeId y) { return y == kNoNode ? x : builder_.make(Op::kAnd, {x, y}); }

  bool is_false(NodeId keep) const {
    if (keep == kNoNode) return false;
    const Node& node = builder_.node(keep);
    return node.op == Op::kConstant && !ir::constant_bool(node);
  }

  bool is_positive_constant(NodeId id) const {
    const Node& node = builder_.node(id);
    // A subnormal factor may be flushed to zero, and -inf * 0 is NaN.
    return node.op == Op::kConstant && ir::constant_f32(node) >= std::numeric_limits<float>::min() &&
           ir::constant_f32(node) <= std::numeric_limits<float>::max();
  }

  ir::Builder& builder_;
  std::vector<Bound> bounds_;
  std::vector<MaskedValue> masked_;
};

}  // namespace

MaskedValue hoist_mask(ir::Builder& builder, NodeId node) { return Hoister(builder, node).run(); }

}  // namespace scoremod::passes
