// Arithmetic on i32, which wraps: a ring, so that sums, differences and products may be regrouped at will.
#include <limits>

#include "passes/rewriter.hpp"

namespace scoremod::passes {
namespace {

constexpr auto I = Type::kI32;
constexpr std::int32_t kLowest = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t kHighest = std::numeric_limits<std::int32_t>::max();

std::int32_t add(std::int32_t x, std::int32_t y) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(x) + static_cast<std::uint32_t>(y));
}
std::int32_t multiply(std::int32_t x, std::int32_t y) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(x) * static_cast<std::uint32_t>(y));
}
std::int32_t negate(std::int32_t x) { return add(~x, 1); }

/// x + c, written with a positive constant.
NodeId plus(Rewriter& r, NodeId x, std::int32_t c) {
  if (c == 0) return x;
  if (c < 0 && c != kLowest) return r.make(Op::kSub, {x, r.constant(-c)});
  return r.make(Op::kAdd, {x, r.constant(c)});
}

/// c - x.
NodeId minus_from(Rewriter& r, std::int32_t c, NodeId x) { return r.make(Op::kSub, {r.constant(c), x}); }

/// A node as sign * node + offset, where one of its arguments is constant.
struct Shifted {
  NodeId node = kNoNode;
  bool negative = false;
  std::int32_t offset = 0;
};

std::optional<Shifted> shifted(const Rewriter& r, NodeId id) {
  const Node n = r.node(id);
  if (n.op == Op::kNeg) return Shifted{n.args[0], true, 0};
  if (n.op != Op::kAdd && n.op != Op::kSub) return std::nullopt;
  if (const auto c = r.i32(n.args[1])) return Shifted{n.args[0], false, n.op == Op::kAdd ? *c : negate(*c)};
  if (n.op == Op::kSub) {
    if (const auto c = r.i32(n.args[0])) return Shifted{n.args[1], true, *c};
  }
  return std::nullopt;
}

NodeId shift(Rewriter& r, const Shifted& from, std::int32_t c) {
  const std::int32_t offset = add(from.offset, c);
  return from.negative ? minus_from(r, offset, from.node) : plus(r, from.node, offset);
}

/// (x + c) + d, (x - c) + d, (c - x) + d and, with the sign of d, the same less d.
template <bool subtract>
NodeId regroup_right(Rewriter& r, const Node& n) {
  const auto d = r.i32(n.args[1]);
  if (!d) return kNoNode;
  const auto inner = shifted(r, n.args[0]);
  return inner ? shift(r, *inner, subtract ? negate(*d) : *d) : kNoNode;
}

/// d - (x + c), d - (x - c), d - (c - x).
NodeId regroup_left(Rewriter& r, const Node& n) {
  const auto d = r.i32(n.args[0]);
  if (!d) return kNoNode;
  const auto inner = shifted(r, n.args[1]);
  if (!inner) return kNoNode;
  return shift(r, {inner->node, !inner->negative, negate(inner->offset)}, *d);
}

NodeId negative_constant(Rewriter& r, const Node& n) {
  const auto c = r.i32(n.args[1]);
  if (!c || *c >= 0 || *c == kLowest) return kNoNode;
  return r.make(n.op == Op::kAdd ? Op::kSub : Op::kAdd, {n.args[0], r.constant(-*c)});
}

NodeId add_negated(Rewriter& r, const Node& n) {
  const Node x = r.node(n.args[0]);
  const Node y = r.node(n.args[1]);
  if (y.op == Op::kNeg) return r.make(Op::kSub, {n.args[0], y.args[0]});
  if (x.op == Op::kNeg) return r.make(Op::kSub, {n.args[1], x.args[0]});
  return kNoNode;
}

/// (x - y) + y and y + (x - y).
NodeId add_cancels(Rewriter& r, const Node& n) {
  const Node x = r.node(n.args[0]);
  const Node y = r.node(n.args[1]);
  if (x.op == Op::kSub && x.args[1] == n.args[1]) return x.args[0];
  if (y.op == Op::kSub && y.args[1] == n.args[0]) return y.args[0];
  return kNoNode;
}

/// (x + y) - y, (x + y) - x, x - (x - y), x - (x + y), x - (y + x), (x - y) - x.
NodeId subtract_cancels(Rewriter& r, const Node& n) {
  const NodeId a = n.args[0];
  const NodeId b = n.args[1];
  const Node x = r.node(a);
  const Node y = r.node(b);
  if (x.op == Op::kAdd && x.args[1] == b) return x.args[0];
  if (x.op == Op::kAdd && x.args[0] == b) return x.args[1];
  if (x.op == Op::kSub && x.args[0] == b) return r.make(Op::kNeg, {x.args[1]});
  if (y.op == Op::kSub && y.args[0] == a) return y.args[1];
  if (y.op == Op::kAdd && y.args[0] == a) return r.make(Op::kNeg, {y.args[1]});
  if (y.op == Op::kAdd && y.args[1] == a) return r.make(Op::kNeg, {y.args[0]});
  return kNoNode;
}

NodeId subtract_negated(Rewriter& r, const Node& n) {
  const Node y = r.node(n.args[1]);
  return y.op == Op::kNeg ? r.make(Op::kAdd, {n.args[0], y.args[0]}) : kNoNode;
}

NodeId negate_node(Rewriter& r, const Node& n) {
  const Node x = r.node(n.args[0]);
  if (x.op == Op::kNeg) return x.args[0];
  if (x.op == Op::kSub) return r.make(Op::kSub, {x.args[1], x.args[0]});
  const auto c = x.arg_count == 2 ? r.i32(x.args[1]) : std::nullopt;
  if (c && x.op == Op::kAdd) return minus_from(r, negate(*c), x.args[0]);
  if (c && x.op == Op::kMul) return r.make(Op::kMul, {x.args[0], r.constant(negate(*c))});
  return kNoNode;
}

NodeId multiply_constants(Rewriter& r, const Node& n) {
  const auto d = r.i32(n.args[1]);
  const Node x = r.node(n.args[0]);
  if (!d) return kNoNode;
  if (x.op == Op::kNeg) return r.make(Op::kMul, {x.args[0], r.constant(negate(*d))});
  const auto c = x.op == Op::kMul ? r.i32(x.args[1]) : std::nullopt;
  return c ? r.make(Op::kMul, {x.args[0], r.constant(multiply(*c, *d))}) : kNoNode;
}

NodeId multiply_negated(Rewriter& r, const Node& n) {
  const Node x = r.node(n.args[0]);
  const Node y = r.node(n.args[1]);
  return x.op == Op::kNeg && y.op == Op::kNeg ? r.make(Op::kMul, {x.args[0], y.args[0]}) : kNoNode;
}

NodeId multiply_by_unit(Rewriter& r, const Node& n) {
  if (r.is_i32(n.args[1], 1)) return n.args[0];
  if (r.is_i32(n.args[1], 0)) return n.args[1];
  return r.is_i32(n.args[1], -1) ? r.make(Op::kNeg, {n.args[0]}) : kNoNode;
}

NodeId divide_by_unit(Rewriter& r, const Node& n) {
  if (r.is_i32(n.args[1], 1)) return n.args[0];
  if (r.is_i32(n.args[1], 0)) return n.args[1];
  if (r.is_i32(n.args[0], 0)) return n.args[0];
  return r.is_i32(n.args[1], -1) ? r.make(Op::kNeg, {n.args[0]}) : kNoNode;
}

/// (x // c) // d for positive c and d, whose product must not wrap.
NodeId divide_twice(Rewriter& r, const Node& n) {
  const Node x = r.node(n.args[0]);
  if (x.op != Op::kFloorDiv) return kNoNode;
  const std::int64_t c = r.i32(x.args[1]).value_or(0);
  const std::int64_t d = r.i32(n.args[1]).value_or(0);
  if (c <= 0 || d <= 0 || c * d > kHighest) return kNoNode;
  return r.make(Op::kFloorDiv, {x.args[0], r.constant(static_cast<std::int32_t>(c * d))});
}

NodeId modulo_unit(Rewriter& r, const Node& n) {
  if (r.is_i32(n.args[1], 1) || r.is_i32(n.args[1], -1)) return r.constant(0);
  if (r.is_i32(n.args[1], 0) || r.is_i32(n.args[0], 0)) return n.args[0];
  return n.args[0] == n.args[1] ? r.constant(0) : kNoNode;
}

NodeId modulo_twice(Rewriter& r, const Node& n) {
  const Node x = r.node(n.args[0]);
  return x.op == Op::kMod && x.args[1] == n.args[1] ? n.args[0] : kNoNode;
}

NodeId same_twice(Rewriter&, const Node& n) { return n.args[0] == n.args[1] ? n.args[0] : kNoNode; }

NodeId extremum_of_limit(Rewriter& r, const Node& n) {
  const bool smaller = n.op == Op::kMin;
  if (r.is_i32(n.args[1], smaller ? kHighest : kLowest)) return n.args[0];
  return r.is_i32(n.args[1], smaller ? kLowest : kHighest) ? n.args[1] : kNoNode;
}

NodeId extremum_of_constants(Rewriter& r, const Node& n) {
  const Node x = r.node(n.args[0]);
  if (x.op != n.op || !r.i32(x.args[1]) || !r.i32(n.args[1])) return kNoNode;
  return r.make(n.op, {x.args[0], r.make(n.op, {x.args[1], n.args[1]})});
}

/// min(x, max(x, y)) and its mirror images.
NodeId absorb(Rewriter& r, const Node& n) {
  const Op other = n.op == Op::kMin ? Op::kMax : Op::kMin;
  for (const std::size_t i : {0, 1}) {
    const NodeId x = n.args[i];
    const Node inner = r.node(n.args[1 - i]);
    if (inner.op == other && (inner.args[0] == x || inner.args[1] == x)) return x;
  }
  return kNoNode;
}

constexpr Rule kRules[] = {
    {"x + 0 = x", Op::kAdd, I, [](Rewriter& r, const Node& n) { return r.is_i32(n.args[1], 0) ? n.args[0] : kNoNode; }},
    {"(x + c) + d = x + (c + d)", Op::kAdd, I, regroup_right<false>},
    {"x + -c = x - c", Op::kAdd, I, negative_constant},
    {"x + -y = x - y", Op::kAdd, I, add_negated},
    {"(x - y) + y = x", Op::kAdd, I, add_cancels},
    {"x - 0 = x", Op::kSub, I, [](Rewriter& r, const Node& n) { return r.is_i32(n.args[1], 0) ? n.args[0] : kNoNode; }},
    {"x - x = 0", Op::kSub, I,
     [](Rewriter& r, const Node& n) { return n.args[0] == n.args[1] ? r.constant(0) : kNoNode; }},
    {"0 - x = -x", Op::kSub, I,
     [](Rewriter& r, const Node& n) { return r.is_i32(n.args[0], 0) ? r.make(Op::kNeg, {n.args[1]}) : kNoNode; }},
    {"(x + c) - d = x + (c - d)", Op::kSub, I, regroup_right<true>},
    {"d - (x + c) = (d - c) - x", Op::kSub, I, regroup_left},
    {"x - -c = x + c", Op::kSub, I, negative_constant},
    {"x - -y = x + y", Op::kSub, I, subtract_negated},
    {"(x + y) - y = x", Op::kSub, I, subtract_cancels},
    {"-(-x) = x, -(x - y) = y - x", Op::kNeg, I, negate_node},
    {"x * 1 = x, x * 0 = 0, x * -1 = -x", Op::kMul, I, multiply_by_unit},
    {"(x * c) * d = x * (c * d)", Op::kMul, I, multiply_constants},
    {"-x * -y = x * y", Op::kMul, I, multiply_negated},
    {"x // 1 = x, x // 0 = 0, 0 // x = 0, x // -1 = -x", Op::kFloorDiv, I, divide_by_unit},
    {"(x // c) // d = x // (c * d)", Op::kFloorDiv, I, divide_twice},
    {"x % 1 = 0, x % 0 = x, 0 % x = 0, x % x = 0", Op::kMod, I, modulo_unit},
    {"(x % y) % y = x % y", Op::kMod, I, modulo_twice},
    {"min(x, x) = x", Op::kMin, I, same_twice},
    {"max(x, x) = x", Op::kMax, I, same_twice},
    {"min(x, highest) = x, min(x, lowest) = lowest", Op::kMin, I, extremum_of_limit},
    {"max(x, lowest) = x, max(x, highest) = highest", Op::kMax, I, extremum_of_limit},
    {"min(min(x, c), d) = min(x, min(c, d))", Op::kMin, I, extremum_of_constants},
    {"max(max(x, c), d) = max(x, max(c, d))", Op::kMax, I, extremum_of_constants},
    {"min(x, max(x, y)) = x", Op::kMin, I, absorb},
    {"max(x, min(x, y)) = x", Op::kMax, I, absorb},
    {"abs(-x) = abs(x), abs(abs(x)) = abs(x)", Op::kAbs, I,
     [](Rewriter& r, const Node& n) {
       if (r.is(n.args[0], Op::kAbs)) return n.args[0];
       return r.is(n.args[0], Op::kNeg) ? r.make(Op::kAbs, {r.node(n.args[0]).args[0]}) : kNoNode;
     }},
    {"sign(sign(x)) = sign(x)", Op::kSign, I,
     [](Rewriter& r, const Node& n) { return r.is(n.args[0], Op::kSign) ? n.args[0] : kNoNode; }},
};

}  // namespace

std::span<const Rule> i32_rules() { return kRules; }

}  // namespace scoremod::passes
