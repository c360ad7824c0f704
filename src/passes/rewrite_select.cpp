// Selection and casts.
#include "passes/rewriter.hpp"

namespace scoremod::passes {
namespace {

constexpr auto F = Type::kF32;
constexpr auto I = Type::kI32;
constexpr auto B = Type::kBool;

NodeId decided(Rewriter& r, const Node& n) {
  const auto condition = r.boolean(n.args[0]);
  return condition ? n.args[*condition ? 1 : 2] : kNoNode;
}

NodeId equal_branches(Rewriter&, const Node& n) { return n.args[1] == n.args[2] ? n.args[1] : kNoNode; }

NodeId negated_condition(Rewriter& r, const Node& n) {
  const Node condition = r.node(n.args[0]);
  return condition.op == Op::kNot ? r.make(Op::kSelect, {condition.args[0], n.args[2], n.args[1]}) : kNoNode;
}

/// A branch that is itself a select on the same condition.
NodeId nested(Rewriter& r, const Node& n) {
  const Node x = r.node(n.args[1]);
  const Node y = r.node(n.args[2]);
  if (x.op == Op::kSelect && x.args[0] == n.args[0]) return r.make(Op::kSelect, {n.args[0], x.args[1], n.args[2]});
  if (y.op == Op::kSelect && y.args[0] == n.args[0]) return r.make(Op::kSelect, {n.args[0], n.args[1], y.args[2]});
  return kNoNode;
}

/// select(c, true, y), select(c, x, false), select(c, false, true) and, with c for a constant, the same.
NodeId between_bools(Rewriter& r, const Node& n) {
  if (n.type != B) return kNoNode;
  const NodeId c = n.args[0];
  if (n.args[1] == c || r.is_bool(n.args[1], true)) return r.make(Op::kOr, {c, n.args[2]});
  if (n.args[2] == c || r.is_bool(n.args[2], false)) return r.make(Op::kAnd, {c, n.args[1]});
  const bool negates = r.is_bool(n.args[1], false) && r.is_bool(n.args[2], true);
  return negates ? r.make(Op::kNot, {c}) : kNoNode;
}

NodeId one_or_zero(Rewriter& r, const Node& n) {
  if (r.is_f32(n.args[1], 1.0f) && r.is_f32(n.args[2], 0.0f)) return r.make(Op::kToF32, {n.args[0]});
  if (r.is_i32(n.args[1], 1) && r.is_i32(n.args[2], 0)) return r.make(Op::kToI32, {n.args[0]});
  return kNoNode;
}

/// select(x < y, x, y) and its kind, in i32: in f32 it is not min, because of NaN and the sign of zero.
NodeId extremum(Rewriter& r, const Node& n) {
  const Node c = r.node(n.args[0]);
  const bool below = c.op == Op::kLt || c.op == Op::kLe;
  if (n.type != I || (!below && c.op != Op::kGt && c.op != Op::kGe)) return kNoNode;
  const bool straight = c.args[0] == n.args[1] && c.args[1] == n.args[2];
  const bool crossed = c.args[0] == n.args[2] && c.args[1] == n.args[1];
  if (!straight && !crossed) return kNoNode;
  return r.make(below == straight ? Op::kMin : Op::kMax, {n.args[1], n.args[2]});
}

NodeId same_type(Rewriter&, const Node& n) { return n.args[0]; }

/// A cast of a cast, where the inner one loses nothing that the outer one keeps.
NodeId cast_of_cast(Rewriter& r, const Node& n) {
  const Node inner = r.node(n.args[0]);
  if (inner.op != Op::kToF32 && inner.op != Op::kToI32) return kNoNode;
  const Type from = r.type(inner.args[0]);
  if (from == B) return n.type == B ? inner.args[0] : r.make(n.op, {inner.args[0]});
  // No i32 but 0 rounds to 0.0. The cast of an f32 to i32 loses its fraction.
  const bool exact = from == I && n.type == B;
  return exact ? r.make(n.op, {inner.args[0]}) : kNoNode;
}

/// bool(-x) and bool(abs(x)).
NodeId sign_of_bool(Rewriter& r, const Node& n) {
  const Node x = r.node(n.args[0]);
  return x.op == Op::kNeg || x.op == Op::kAbs ? r.make(Op::kToBool, {x.args[0]}) : kNoNode;
}

constexpr Rule kSelectRules[] = {
    {"select(true, x, y) = x", Op::kSelect, B, decided},
    {"select(c, x, x) = x", Op::kSelect, B, equal_branches},
    {"select(!c, x, y) = select(c, y, x)", Op::kSelect, B, negated_condition},
    {"select(c, select(c, x, y), z) = select(c, x, z)", Op::kSelect, B, nested},
    {"select(c, x, false) = c & x, select(c, true, x) = c | x", Op::kSelect, B, between_bools},
    {"select(c, 1, 0) = i32(c)", Op::kSelect, B, one_or_zero},
    {"select(x < y, x, y) = min(x, y)", Op::kSelect, B, extremum},
};

constexpr Rule kCastRules[] = {
    {"f32(x) = x", Op::kToF32, F, same_type},
    {"i32(x) = x", Op::kToI32, I, same_type},
    {"bool(x) = x", Op::kToBool, B, same_type},
    {"f32(i32(b)) = f32(b)", Op::kToF32, I, cast_of_cast},
    {"i32(f32(b)) = i32(b)", Op::kToI32, F, cast_of_cast},
    {"bool(f32(i)) = bool(i)", Op::kToBool, F, cast_of_cast},
    {"bool(i32(b)) = b", Op::kToBool, I, cast_of_cast},
    {"bool(-x) = bool(x)", Op::kToBool, F, sign_of_bool},
    {"bool(-x) = bool(x)", Op::kToBool, I, sign_of_bool},
};

}  // namespace

std::span<const Rule> select_rules() { return kSelectRules; }
std::span<const Rule> cast_rules() { return kCastRules; }

}  // namespace scoremod::passes
