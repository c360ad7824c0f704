// Arithmetic on f32: only rules that hold bit for bit, for every float, signed zeros, infinities and NaN included.
#include <cmath>
#include <limits>

#include "passes/rewriter.hpp"

namespace scoremod::passes {
namespace {

constexpr auto F = Type::kF32;
constexpr float kInf = std::numeric_limits<float>::infinity();

/// True where the node's value can't be -0.0. A sum is -0.0 only when both terms are.
bool never_negative_zero(const Rewriter& r, NodeId id) {
  const Node n = r.node(id);
  switch (n.op) {
    case Op::kAbs:
    case Op::kExp:
    case Op::kExp2:
    case Op::kSigmoid:
    case Op::kSoftplus:
    case Op::kRelu: return true;
    case Op::kToF32: return r.type(n.args[0]) != F;
    case Op::kAdd: return r.f32(n.args[1]) && !r.is_f32(n.args[1], -0.0f);
    case Op::kSub: return r.f32(n.args[1]) && !r.is_f32(n.args[1], 0.0f);
    default: return false;
  }
}

/// True where the value is at least 0.0 (not -0.0), or NaN.
bool never_negative(const Rewriter& r, NodeId id) {
  const Node n = r.node(id);
  switch (n.op) {
    case Op::kAbs:
    case Op::kExp:
    case Op::kExp2:
    case Op::kSigmoid:
    case Op::kSoftplus:
    case Op::kRelu: return true;
    case Op::kToF32: return r.type(n.args[0]) == Type::kBool;
    default: return false;
  }
}

/// True where the value is a whole number, an infinity or NaN.
bool whole(const Rewriter& r, NodeId id) {
  const Node n = r.node(id);
  switch (n.op) {
    case Op::kFloor:
    case Op::kCeil:
    case Op::kRound:
    case Op::kSign: return true;
    case Op::kToF32: return r.type(n.args[0]) != F;
    default: return false;
  }
}

NodeId negated(Rewriter& r, NodeId id) { return r.is(id, Op::kNeg) ? r.node(id).args[0] : kNoNode; }

/// A constant with its sign bit set, except NaN.
bool is_negative_constant(const Rewriter& r, NodeId id) {
  const auto value = r.f32(id);
  return value && !std::isnan(*value) && std::signbit(*value);
}

/// The reciprocal of a power of two, where both are normal numbers: division by it is then the same as multiplication.
std::optional<float> exact_reciprocal(std::optional<float> value) {
  if (!value || !std::isnormal(*value)) return std::nullopt;
  int exponent = 0;
  if (std::abs(std::frexp(*value, &exponent)) != 0.5f) return std::nullopt;
  const float reciprocal = 1 / *value;
  if (!std::isnormal(reciprocal)) return std::nullopt;
  return reciprocal;
}

template <Op inverse>
NodeId drop_sign_of_constant(Rewriter& r, const Node& n) {
  if (!is_negative_constant(r, n.args[1])) return kNoNode;
  return r.make(inverse, {n.args[0], r.constant(-*r.f32(n.args[1]))});
}

NodeId cancel_negations(Rewriter& r, const Node& n) {
  const NodeId x = negated(r, n.args[0]);
  const NodeId y = negated(r, n.args[1]);
  return x == kNoNode || y == kNoNode ? kNoNode : r.make(n.op, {x, y});
}

NodeId negation_into_constant(Rewriter& r, const Node& n) {
  const NodeId x = negated(r, n.args[0]);
  const auto c = r.f32(n.args[1]);
  return x == kNoNode || !c ? kNoNode : r.make(n.op, {x, r.constant(-*c)});
}

NodeId multiply_instead(Rewriter& r, const Node& n) {
  const auto reciprocal = exact_reciprocal(r.f32(n.args[1]));
  return reciprocal ? r.make(Op::kMul, {n.args[0], r.constant(*reciprocal)}) : kNoNode;
}

/// -(x * c), -(x / c) and -(c / x).
NodeId negate_factor(Rewriter& r, const Node& n) {
  const Node inner = r.node(n.args[0]);
  if (inner.op != Op::kMul && inner.op != Op::kDiv) return kNoNode;
  if (const auto c = r.f32(inner.args[1])) return r.make(inner.op, {inner.args[0], r.constant(-*c)});
  if (const auto c = r.f32(inner.args[0])) return r.make(inner.op, {r.constant(-*c), inner.args[1]});
  return kNoNode;
}

NodeId same_twice(Rewriter&, const Node& n) { return n.args[0] == n.args[1] ? n.args[0] : kNoNode; }

/// min(min(x, c), d) and max alike. Zeros are left alone: which of 0.0 and -0.0 is taken depends on the order.
NodeId extremum_of_constants(Rewriter& r, const Node& n) {
  const Node inner = r.node(n.args[0]);
  if (inner.op != n.op) return kNoNode;
  const float c = r.f32(inner.args[1]).value_or(0);
  const float d = r.f32(n.args[1]).value_or(0);
  if (c == 0 || d == 0 || std::isnan(c) || std::isnan(d)) return kNoNode;
  return r.make(n.op, {inner.args[0], r.make(n.op, {inner.args[1], n.args[1]})});
}

template <class Condition>
NodeId first_if(const Node& n, Condition condition) {
  return condition ? n.args[0] : kNoNode;
}

NodeId first_if_whole(Rewriter& r, const Node& n) { return first_if(n, whole(r, n.args[0])); }
NodeId first_if_never_negative(Rewriter& r, const Node& n) { return first_if(n, never_negative(r, n.args[0])); }

template <Op op>
NodeId of_negated(Rewriter& r, const Node& n) {
  const NodeId x = negated(r, n.args[0]);
  return x == kNoNode ? kNoNode : r.make(op, {x});
}

constexpr Rule kRules[] = {
    {"x + -0.0 = x", Op::kAdd, F, [](Rewriter& r, const Node& n) { return first_if(n, r.is_f32(n.args[1], -0.0f)); }},
    {"x + 0.0 = x unless x can be -0.0", Op::kAdd, F,
     [](Rewriter& r, const Node& n) {
       return first_if(n, r.is_f32(n.args[1], 0.0f) && never_negative_zero(r, n.args[0]));
     }},
    {"x + -c = x - c", Op::kAdd, F, drop_sign_of_constant<Op::kSub>},
    {"x + -y = x - y", Op::kAdd, F,
     [](Rewriter& r, const Node& n) {
       const NodeId y = negated(r, n.args[1]);
       return y == kNoNode ? kNoNode : r.make(Op::kSub, {n.args[0], y});
     }},
    {"-x + y = y - x", Op::kAdd, F,
     [](Rewriter& r, const Node& n) {
       const NodeId x = negated(r, n.args[0]);
       return x == kNoNode ? kNoNode : r.make(Op::kSub, {n.args[1], x});
     }},
    {"x - 0.0 = x", Op::kSub, F, [](Rewriter& r, const Node& n) { return first_if(n, r.is_f32(n.args[1], 0.0f)); }},
    {"x - -c = x + c", Op::kSub, F, drop_sign_of_constant<Op::kAdd>},
    {"x - -y = x + y", Op::kSub, F,
     [](Rewriter& r, const Node& n) {
       const NodeId y = negated(r, n.args[1]);
       return y == kNoNode ? kNoNode : r.make(Op::kAdd, {n.args[0], y});
     }},
    {"-0.0 - x = -x", Op::kSub, F,
     [](Rewriter& r, const Node& n) { return r.is_f32(n.args[0], -0.0f) ? r.make(Op::kNeg, {n.args[1]}) : kNoNode; }},
    {"x * 1.0 = x", Op::kMul, F, [](Rewriter& r, const Node& n) { return first_if(n, r.is_f32(n.args[1], 1.0f)); }},
    {"x * -1.0 = -x", Op::kMul, F,
     [](Rewriter& r, const Node& n) { return r.is_f32(n.args[1], -1.0f) ? r.make(Op::kNeg, {n.args[0]}) : kNoNode; }},
    {"-x * -y = x * y", Op::kMul, F, cancel_negations},
    {"-x * c = x * -c", Op::kMul, F, negation_into_constant},
    {"x / 1.0 = x", Op::kDiv, F, [](Rewriter& r, const Node& n) { return first_if(n, r.is_f32(n.args[1], 1.0f)); }},
    {"x / -1.0 = -x", Op::kDiv, F,
     [](Rewriter& r, const Node& n) { return r.is_f32(n.args[1], -1.0f) ? r.make(Op::kNeg, {n.args[0]}) : kNoNode; }},
    {"x / 2^k = x * 2^-k", Op::kDiv, F, multiply_instead},
    {"-x / -y = x / y", Op::kDiv, F, cancel_negations},
    {"-x / c = x / -c", Op::kDiv, F, negation_into_constant},
    {"1.0 / x = reciprocal(x)", Op::kDiv, F,
     [](Rewriter& r, const Node& n) {
       return r.is_f32(n.args[0], 1.0f) ? r.make(Op::kReciprocal, {n.args[1]}) : kNoNode;
     }},
    {"-(-x) = x", Op::kNeg, F, [](Rewriter& r, const Node& n) { return negated(r, n.args[0]); }},
    {"-(x * c) = x * -c", Op::kNeg, F, negate_factor},
    {"abs(-x) = abs(x)", Op::kAbs, F, of_negated<Op::kAbs>},
    {"abs(x) = x unless x can be negative", Op::kAbs, F, first_if_never_negative},
    {"sign(sign(x)) = sign(x)", Op::kSign, F,
     [](Rewriter& r, const Node& n) { return first_if(n, r.is(n.args[0], Op::kSign)); }},
    {"floor(x) = x for a whole x", Op::kFloor, F, first_if_whole},
    {"ceil(x) = x for a whole x", Op::kCeil, F, first_if_whole},
    {"round(x) = x for a whole x", Op::kRound, F, first_if_whole},
    {"relu(x) = x unless x can be negative", Op::kRelu, F, first_if_never_negative},
    {"min(x, x) = x", Op::kMin, F, same_twice},
    {"max(x, x) = x", Op::kMax, F, same_twice},
    {"min(x, inf) = x", Op::kMin, F, [](Rewriter& r, const Node& n) { return first_if(n, r.is_f32(n.args[1], kInf)); }},
    {"max(x, -inf) = x", Op::kMax, F,
     [](Rewriter& r, const Node& n) { return first_if(n, r.is_f32(n.args[1], -kInf)); }},
    {"min(min(x, c), d) = min(x, min(c, d))", Op::kMin, F, extremum_of_constants},
    {"max(max(x, c), d) = max(x, max(c, d))", Op::kMax, F, extremum_of_constants},
    {"pow(x, 1.0) = x", Op::kPow, F, [](Rewriter& r, const Node& n) { return first_if(n, r.is_f32(n.args[1], 1.0f)); }},
    // C's pow: even for NaN.
    {"pow(x, 0.0) = 1.0", Op::kPow, F,
     [](Rewriter& r, const Node& n) { return r.f32(n.args[1]) == 0.0f ? r.constant(1.0f) : kNoNode; }},
    {"pow(1.0, y) = 1.0", Op::kPow, F,
     [](Rewriter& r, const Node& n) { return first_if(n, r.is_f32(n.args[0], 1.0f)); }},
};

}  // namespace

std::span<const Rule> f32_rules() { return kRules; }

}  // namespace scoremod::passes
