// Boolean algebra, and comparisons.
#include <cmath>
#include <limits>

#include "passes/rewriter.hpp"

namespace scoremod::passes {
namespace {

constexpr auto F = Type::kF32;
constexpr auto I = Type::kI32;
constexpr auto B = Type::kBool;

/// The comparison that is true where this one is false. Only (in)equality has one when NaN may come in: !(x < y) is not
/// x >= y.
std::optional<Op> opposite(Op op, Type type) {
  switch (op) {
    case Op::kEq: return Op::kNe;
    case Op::kNe: return Op::kEq;
    case Op::kLt: return type == I ? std::optional(Op::kGe) : std::nullopt;
    case Op::kLe: return type == I ? std::optional(Op::kGt) : std::nullopt;
    case Op::kGt: return type == I ? std::optional(Op::kLe) : std::nullopt;
    case Op::kGe: return type == I ? std::optional(Op::kLt) : std::nullopt;
    default: return std::nullopt;
  }
}

/// True where y is written as the negation of x.
bool are_opposite(const Rewriter& r, NodeId x, NodeId y) {
  const Node a = r.node(x);
  const Node b = r.node(y);
  if (a.op == Op::kNot && a.args[0] == y) return true;
  if (b.op == Op::kNot && b.args[0] == x) return true;
  return a.arg_count == 2 && a.args == b.args && opposite(a.op, r.type(a.args[0])) == b.op;
}

NodeId negate(Rewriter& r, const Node& n) {
  const Node x = r.node(n.args[0]);
  if (x.op == Op::kNot) return x.args[0];
  if (x.arg_count != 2) return kNoNode;
  const auto op = opposite(x.op, r.type(x.args[0]));
  return op ? r.make(*op, {x.args[0], x.args[1]}) : kNoNode;
}

/// x & false and x | true.
template <bool dominant>
NodeId with_constant(Rewriter& r, const Node& n) {
  if (r.is_bool(n.args[1], dominant)) return n.args[1];
  return r.is_bool(n.args[1], !dominant) ? n.args[0] : kNoNode;
}

/// x & !x, x | !x.
NodeId excluded_middle(Rewriter& r, const Node& n) {
  return are_opposite(r, n.args[0], n.args[1]) ? r.constant(n.op == Op::kOr) : kNoNode;
}

/// x & (x & y) is x & y, x & (x | y) is x; and the same with | for &.
NodeId absorb(Rewriter& r, const Node& n) {
  const Op other = n.op == Op::kAnd ? Op::kOr : Op::kAnd;
  for (const std::size_t i : {0, 1}) {
    const NodeId x = n.args[i];
    const Node inner = r.node(n.args[1 - i]);
    if (inner.op != n.op && inner.op != other) continue;
    if (inner.args[0] == x || inner.args[1] == x) return inner.op == other ? x : n.args[1 - i];
  }
  return kNoNode;
}

NodeId same_twice(Rewriter&, const Node& n) { return n.args[0] == n.args[1] ? n.args[0] : kNoNode; }

NodeId exclusive_or(Rewriter& r, const Node& n) {
  if (n.args[0] == n.args[1]) return r.constant(false);
  if (are_opposite(r, n.args[0], n.args[1])) return r.constant(true);
  if (r.is_bool(n.args[1], false)) return n.args[0];
  return r.is_bool(n.args[1], true) ? r.make(Op::kNot, {n.args[0]}) : kNoNode;
}

/// x == true, x == false, x != true, x != false.
NodeId compare_with_bool(Rewriter& r, const Node& n) {
  const auto c = r.boolean(n.args[1]);
  if (!c) return kNoNode;
  return *c == (n.op == Op::kEq) ? n.args[0] : r.make(Op::kNot, {n.args[0]});
}

NodeId compare_opposites(Rewriter& r, const Node& n) {
  return are_opposite(r, n.args[0], n.args[1]) ? r.constant(n.op == Op::kNe) : kNoNode;
}

template <bool result>
NodeId when_same(Rewriter& r, const Node& n) {
  return n.args[0] == n.args[1] ? r.constant(result) : kNoNode;
}

/// Nothing equals NaN, nor is below or above it.
NodeId compare_with_nan(Rewriter& r, const Node& n) {
  const auto c = r.f32(n.args[1]);
  return c && std::isnan(*c) ? r.constant(n.op == Op::kNe) : kNoNode;
}

/// A comparison of a node that can only be one of two constants: f32(b) > 0.5 is b, i32(b) == 0 is !b.
NodeId compare_choice(Rewriter& r, const Node& n) {
  const Node x = r.node(n.args[0]);
  if (!r.is_constant(n.args[1])) return kNoNode;
  NodeId yes = kNoNode;
  NodeId no = kNoNode;
  if (x.op == Op::kSelect && r.is_constant(x.args[1]) && r.is_constant(x.args[2])) {
    yes = x.args[1];
    no = x.args[2];
  } else if ((x.op == Op::kToF32 || x.op == Op::kToI32) && r.type(x.args[0]) == B) {
    yes = x.op == Op::kToF32 ? r.constant(1.0f) : r.constant(1);
    no = x.op == Op::kToF32 ? r.constant(0.0f) : r.constant(0);
  } else {
    return kNoNode;
  }
  const bool if_yes = *r.boolean(r.make(n.op, {yes, n.args[1]}));
  const bool if_no = *r.boolean(r.make(n.op, {no, n.args[1]}));
  if (if_yes == if_no) return r.constant(if_yes);
  return if_yes ? x.args[0] : r.make(Op::kNot, {x.args[0]});
}

/// Comparisons with the lowest and the highest i32.
NodeId compare_with_limit(Rewriter& r, const Node& n) {
  using Limits = std::numeric_limits<std::int32_t>;
  const bool below = n.op == Op::kLt || n.op == Op::kLe;
  const bool strict = n.op == Op::kLt || n.op == Op::kGt;
  if (r.is_i32(n.args[1], below == strict ? Limits::min() : Limits::max())) return r.constant(!strict);
  return kNoNode;
}

/// x + c == d, c - x == d: subtraction of a constant is a bijection also where it wraps.
NodeId equal_shifted(Rewriter& r, const Node& n) {
  const Node x = r.node(n.args[0]);
  if (!r.i32(n.args[1]) || (x.op != Op::kAdd && x.op != Op::kSub)) return kNoNode;
  const Op inverse = x.op == Op::kAdd ? Op::kSub : Op::kAdd;
  if (r.i32(x.args[1])) return r.make(n.op, {x.args[0], r.make(inverse, {n.args[1], x.args[1]})});
  if (r.i32(x.args[0])) return r.make(n.op, {x.args[1], r.make(Op::kSub, {x.args[0], n.args[1]})});
  // x - y == 0.
  return x.op == Op::kSub && r.is_i32(n.args[1], 0) ? r.make(n.op, {x.args[0], x.args[1]}) : kNoNode;
}

/// -x == -y and -x == c, for i32 and f32 alike.
NodeId equal_negated(Rewriter& r, const Node& n) {
  const Node x = r.node(n.args[0]);
  const Node y = r.node(n.args[1]);
  if (x.op != Op::kNeg) return kNoNode;
  if (y.op == Op::kNeg) return r.make(n.op, {x.args[0], y.args[0]});
  return y.op == Op::kConstant ? r.make(n.op, {x.args[0], r.make(Op::kNeg, {n.args[1]})}) : kNoNode;
}

/// -x < -y and -x < c in f32, where negation turns the order around. In i32 the lowest value is its own negation.
template <Op mirrored>
NodeId order_negated(Rewriter& r, const Node& n) {
  const Node x = r.node(n.args[0]);
  const Node y = r.node(n.args[1]);
  if (x.op != Op::kNeg) return kNoNode;
  if (y.op == Op::kNeg) return r.make(mirrored, {x.args[0], y.args[0]});
  return y.op == Op::kConstant ? r.make(mirrored, {x.args[0], r.make(Op::kNeg, {n.args[1]})}) : kNoNode;
}

constexpr Rule kBoolRules[] = {
    {"!!x = x, !(x == y) = x != y, and orders of i32", Op::kNot, B, negate},
    {"x & false = false, x & true = x", Op::kAnd, B, with_constant<false>},
    {"x | true = true, x | false = x", Op::kOr, B, with_constant<true>},
    {"x & x = x", Op::kAnd, B, same_twice},
    {"x | x = x", Op::kOr, B, same_twice},
    {"x & !x = false", Op::kAnd, B, excluded_middle},
    {"x | !x = true", Op::kOr, B, excluded_middle},
    {"x & (x & y) = x & y, x & (x | y) = x", Op::kAnd, B, absorb},
    {"x | (x | y) = x | y, x | (x & y) = x", Op::kOr, B, absorb},
    {"x ^ x = false, x ^ !x = true, x ^ false = x, x ^ true = !x", Op::kXor, B, exclusive_or},
    {"x == true = x, x == false = !x", Op::kEq, B, compare_with_bool},
    {"x != false = x, x != true = !x", Op::kNe, B, compare_with_bool},
    {"x == x = true", Op::kEq, B, when_same<true>},
    {"x != x = false", Op::kNe, B, when_same<false>},
    {"x == !x = false", Op::kEq, B, compare_opposites},
    {"x != !x = true", Op::kNe, B, compare_opposites},
};

constexpr Rule kComparisonRules[] = {
    {"x == x = true", Op::kEq, I, when_same<true>},
    {"x != x = false", Op::kNe, I, when_same<false>},
    {"x <= x = true", Op::kLe, I, when_same<true>},
    {"x >= x = true", Op::kGe, I, when_same<true>},
    {"x < x = false", Op::kLt, I, when_same<false>},
    {"x > x = false", Op::kGt, I, when_same<false>},
    // False for NaN as well; x == x and x <= x are not true for it.
    {"x < x = false", Op::kLt, F, when_same<false>},
    {"x > x = false", Op::kGt, F, when_same<false>},
    {"x == nan = false", Op::kEq, F, compare_with_nan},
    {"x != nan = true", Op::kNe, F, compare_with_nan},
    {"x < nan = false", Op::kLt, F, compare_with_nan},
    {"x <= nan = false", Op::kLe, F, compare_with_nan},
    {"x > nan = false", Op::kGt, F, compare_with_nan},
    {"x >= nan = false", Op::kGe, F, compare_with_nan},
    {"(b ? c : d) == e = b, !b, true or false", Op::kEq, F, compare_choice},
    {"(b ? c : d) == e = b, !b, true or false", Op::kEq, I, compare_choice},
    {"(b ? c : d) != e = b, !b, true or false", Op::kNe, F, compare_choice},
    {"(b ? c : d) != e = b, !b, true or false", Op::kNe, I, compare_choice},
    {"(b ? c : d) < e = b, !b, true or false", Op::kLt, F, compare_choice},
    {"(b ? c : d) < e = b, !b, true or false", Op::kLt, I, compare_choice},
    {"(b ? c : d) <= e = b, !b, true or false", Op::kLe, F, compare_choice},
    {"(b ? c : d) <= e = b, !b, true or false", Op::kLe, I, compare_choice},
    {"(b ? c : d) > e = b, !b, true or false", Op::kGt, F, compare_choice},
    {"(b ? c : d) > e = b, !b, true or false", Op::kGt, I, compare_choice},
    {"(b ? c : d) >= e = b, !b, true or false", Op::kGe, F, compare_choice},
    {"(b ? c : d) >= e = b, !b, true or false", Op::kGe, I, compare_choice},
    {"x < lowest = false", Op::kLt, I, compare_with_limit},
    {"x <= highest = true", Op::kLe, I, compare_with_limit},
    {"x > highest = false", Op::kGt, I, compare_with_limit},
    {"x >= lowest = true", Op::kGe, I, compare_with_limit},
    {"x + c == d = x == d - c, x - y == 0 = x == y", Op::kEq, I, equal_shifted},
    {"x + c != d = x != d - c, x - y != 0 = x != y", Op::kNe, I, equal_shifted},
    {"-x == -y = x == y", Op::kEq, I, equal_negated},
    {"-x == -y = x == y", Op::kEq, F, equal_negated},
    {"-x != -y = x != y", Op::kNe, I, equal_negated},
    {"-x != -y = x != y", Op::kNe, F, equal_negated},
    {"-x < -y = x > y", Op::kLt, F, order_negated<Op::kGt>},
    {"-x <= -y = x >= y", Op::kLe, F, order_negated<Op::kGe>},
    {"-x > -y = x < y", Op::kGt, F, order_negated<Op::kLt>},
    {"-x >= -y = x <= y", Op::kGe, F, order_negated<Op::kLe>},
};

}  // namespace

std::span<const Rule> bool_rules() { return kBoolRules; }
std::span<const Rule> comparison_rules() { return kComparisonRules; }

}  // namespace scoremod::passes
