// Constants go right: 1 + x becomes x + 1, and 1 < x becomes x > 1. The other rules look for constants there only.
#include "passes/rewriter.hpp"

namespace scoremod::passes {
namespace {

bool constant_is_left(const Rewriter& r, const Node& n) {
  return r.is_constant(n.args[0]) && !r.is_constant(n.args[1]);
}

NodeId swap(Rewriter& r, const Node& n) {
  return constant_is_left(r, n) ? r.make(n.op, {n.args[1], n.args[0]}) : kNoNode;
}

/// The smaller of 0.0 and -0.0 depends on their order; with any other constant the arguments commute.
NodeId swap_nonzero(Rewriter& r, const Node& n) { return r.f32(n.args[0]).value_or(0) != 0 ? swap(r, n) : kNoNode; }

template <Op mirrored>
NodeId mirror(Rewriter& r, const Node& n) {
  return constant_is_left(r, n) ? r.make(mirrored, {n.args[1], n.args[0]}) : kNoNode;
}

constexpr auto F = Type::kF32;
constexpr auto I = Type::kI32;
constexpr auto B = Type::kBool;

constexpr Rule kRules[] = {
    {"c + x = x + c", Op::kAdd, F, swap},
    {"c + x = x + c", Op::kAdd, I, swap},
    {"c * x = x * c", Op::kMul, F, swap},
    {"c * x = x * c", Op::kMul, I, swap},
    {"min(c, x) = min(x, c)", Op::kMin, F, swap_nonzero},
    {"min(c, x) = min(x, c)", Op::kMin, I, swap},
    {"max(c, x) = max(x, c)", Op::kMax, F, swap_nonzero},
    {"max(c, x) = max(x, c)", Op::kMax, I, swap},
    {"c & x = x & c", Op::kAnd, B, swap},
    {"c | x = x | c", Op::kOr, B, swap},
    {"c ^ x = x ^ c", Op::kXor, B, swap},
    {"c == x = x == c", Op::kEq, F, swap},
    {"c == x = x == c", Op::kEq, I, swap},
    {"c == x = x == c", Op::kEq, B, swap},
    {"c != x = x != c", Op::kNe, F, swap},
    {"c != x = x != c", Op::kNe, I, swap},
    {"c != x = x != c", Op::kNe, B, swap},
    {"c < x = x > c", Op::kLt, F, mirror<Op::kGt>},
    {"c < x = x > c", Op::kLt, I, mirror<Op::kGt>},
    {"c <= x = x >= c", Op::kLe, F, mirror<Op::kGe>},
    {"c <= x = x >= c", Op::kLe, I, mirror<Op::kGe>},
    {"c > x = x < c", Op::kGt, F, mirror<Op::kLt>},
    {"c > x = x < c", Op::kGt, I, mirror<Op::kLt>},
    {"c >= x = x <= c", Op::kGe, F, mirror<Op::kLe>},
    {"c >= x = x <= c", Op::kGe, I, mirror<Op::kLe>},
};

}  // namespace

std::span<const Rule> order_rules() { return kRules; }

}  // namespace scoremod::passes
