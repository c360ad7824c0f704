#include "autodiff/rules.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "base/fail.hpp"

namespace scoremod::autodiff {
namespace {

/// A node under construction, so that rules read as formulas.
struct Value {
  ir::Builder* builder;
  NodeId id;
};

Value make(Op op, Value x) { return {x.builder, x.builder->make(op, {x.id})}; }
Value make(Op op, Value x, Value y) { return {x.builder, x.builder->make(op, {x.id, y.id})}; }
Value constant(Value like, float value) { return {like.builder, like.builder->constant(value)}; }

Value operator-(Value x) { return make(Op::kNeg, x); }
Value operator+(Value x, Value y) { return make(Op::kAdd, x, y); }
Value operator-(Value x, Value y) { return make(Op::kSub, x, y); }
Value operator*(Value x, Value y) { return make(Op::kMul, x, y); }
Value operator/(Value x, Value y) { return make(Op::kDiv, x, y); }
Value operator+(Value x, float y) { return x + constant(x, y); }
Value operator-(Value x, float y) { return x - constant(x, y); }
Value operator*(Value x, float y) { return x * constant(x, y); }
Value operator-(float x, Value y) { return constant(y, x) - y; }

Value select(Value condition, Value x, Value y) {
  return {x.builder, x.builder->make(Op::kSelect, {condition.id, x.id, y.id})};
}

/// A node whose adjoint is passed on: v = op(x, y, z), with adjoint g.
struct Site {
  Value g, v, x, y, z;
};

/// Contribution under a condition.
Contribution when(Value condition, Value value) { return {value.id, Literal{condition.id, true, false}, 1}; }
Contribution unless(Value condition, Value value) { return {value.id, Literal{condition.id, false, false}, 1}; }
Contribution plain(Value value) { return {value.id, std::nullopt, 1}; }
Contribution scaled(double factor, Value value) { return {value.id, std::nullopt, factor}; }

using Partial = Contribution (*)(const Site&);

/// One row for each op: the adjoint of each argument. An op without any has derivative zero wherever it has one.
struct Rule {
  Op op;
  std::array<Partial, 3> partials{};
};

constexpr double kLn2 = 0.693147180559945309;
constexpr double kTwoOverSqrtPi = 1.12837916709551257;
constexpr float kOneOverSqrt2 = 0.707106781186547524f;
constexpr float kOneOverSqrt2Pi = 0.398942280401432678f;
constexpr float kSqrt2OverPi = 0.797884560802865356f;
constexpr float kGeluCubic = 0.044715f;  // as in the op table

std::optional<float> constant_of(Value x) {
  const Node& node = x.builder->node(x.id);
  if (node.op != Op::kConstant) return std::nullopt;
  return ir::constant_f32(node);
}

/// A constant that may be kept as a factor of the adjoint: moderate, so that its inverse is, too.
std::optional<double> factor_of(Value x) {
  const auto value = constant_of(x);
  if (!value || !(std::abs(*value) < 0x1p40f) || !(std::abs(*value) > 0x1p-40f)) return std::nullopt;
  return *value;
}

Contribution times(Value g, Value other) {
  if (const auto factor = factor_of(other)) return scaled(*factor, g);
  return plain(g * other);
}

Contribution over(Value g, Value divisor) {
  if (const auto factor = factor_of(divisor)) return scaled(1 / *factor, g);
  return plain(g / divisor);
}

/// d/dx x^y = y x^(y - 1), which is 0 at y = 0 for every x, 0 included.
Contribution pow_base(const Site& s) {
  if (const auto exponent = constant_of(s.y)) {
    if (*exponent == 0) return plain(constant(s.x, 0));
    if (*exponent == 1) return plain(s.g);
    if (*exponent == 2) return scaled(2, s.g * s.x);
    return plain(s.g * (make(Op::kPow, s.x, s.y - 1.0f) * s.y));
  }
  return when(make(Op::kNe, s.y, constant(s.y, 0)), s.g * (s.y * make(Op::kPow, s.x, s.y - 1.0f)));
}

/// d/dy x^y = x^y log(x) where x > 0. At x = 0 it is 0 for y > 0; for x < 0 the power exists at integers only: 0 by
/// convention.
Contribution pow_exponent(const Site& s) {
  return when(make(Op::kGt, s.x, constant(s.x, 0)), s.g * (s.v * make(Op::kLog, s.x)));
}

/// The smaller (larger) of two gets the whole adjoint, or half if both are equal, as in jax.numpy.minimum.
Value share_of_extremum(const Site& s) { return select(make(Op::kEq, s.x, s.y), s.g * 0.5f, s.g); }

/// The density of the normal distribution times x, plus its cumulative distribution.
Value gelu_derivative(Value x) {
  const Value cumulative = (make(Op::kErf, x * kOneOverSqrt2) + 1.0f) * 0.5f;
  const Value density = make(Op::kExp, x * x * -0.5f) * kOneOverSqrt2Pi;
  return cumulative + x * density;
}

/// With u = sqrt(2 / pi) (x + c x^3) and t = tanh(u), twice the derivative: 1 + t + x (1 - t^2) u'.
Value twice_gelu_tanh_derivative(Value x) {
  const Value square = x * x;
  const Value t = make(Op::kTanh, x * (square * (kSqrt2OverPi * kGeluCubic) + kSqrt2OverPi));
  const Value slope = square * (3 * kSqrt2OverPi * kGeluCubic) + kSqrt2OverPi;
  return (t + 1.0f) + x * (1.0f - t * t) * slope;
}

Value silu_derivative(const Site& s) {
  const Value gate = make(Op::kSigmoid, s.x);
  return gate + s.v * (1.0f - gate);
}

// The formulas are textbook calculus (Abramowitz and Stegun, sections 3.3, 4.1 to 4.5 and 7.1), written on the forward
// value v where that saves work.
constexpr std::array<Rule, kOpCount> kRules{{
    {Op::kScore},
    {Op::kUpstream},
    {Op::kScale},
    {Op::kBatchIdx},
    {Op::kHeadIdx},
    {Op::kQueryIdx},
    {Op::kKeyIdx},
    {Op::kConstant},
    {Op::kOperand},
    {Op::kGather},
    {Op::kAdd, {[](const Site& s) { return plain(s.g); }, [](const Site& s) { return plain(s.g); }}},
    {Op::kSub, {[](const Site& s) { return plain(s.g); }, [](const Site& s) { return scaled(-1, s.g); }}},
    {Op::kMul, {[](const Site& s) { return times(s.g, s.y); }, [](const Site& s) { return times(s.g, s.x); }}},
    {Op::kDiv,
     {[](const Site& s) { return over(s.g, s.y); }, [](const Site& s) { return scaled(-1, s.g / s.y * s.v); }}},
    {Op::kFloorDiv},
    {Op::kMod,
     {[](const Site& s) { return plain(s.g); },
      [](const Site& s) { return scaled(-1, s.g * make(Op::kFloor, s.x / s.y)); }}},
    {Op::kPow, {pow_base, pow_exponent}},
    // The derivatives by (y, x): x / (x^2 + y^2) and -y / (x^2 + y^2).
    {Op::kAtan2,
     {[](const Site& s) { return plain(s.g / (s.x * s.x + s.y * s.y) * s.y); },
      [](const Site& s) { return scaled(-1, s.g / (s.x * s.x + s.y * s.y) * s.x); }}},
    {Op::kMin,
     {[](const Site& s) { return when(make(Op::kLe, s.x, s.y), share_of_extremum(s)); },
      [](const Site& s) { return when(make(Op::kGe, s.x, s.y), share_of_extremum(s)); }}},
    {Op::kMax,
     {[](const Site& s) { return when(make(Op::kGe, s.x, s.y), share_of_extremum(s)); },
      [](const Site& s) { return when(make(Op::kLe, s.x, s.y), share_of_extremum(s)); }}},
    {Op::kNeg, {[](const Site& s) { return scaled(-1, s.g); }}},
    // At 0 the derivative of x, as jax.numpy.abs has it.
    {Op::kAbs, {[](const Site& s) { return plain(select(make(Op::kGe, s.x, constant(s.x, 0)), s.g, -s.g)); }}},
    {Op::kSign},
    {Op::kFloor},
    {Op::kCeil},
    {Op::kRound},
    {Op::kExp, {[](const Site& s) { return plain(s.g * s.v); }}},
    {Op::kExp2, {[](const Site& s) { return scaled(kLn2, s.g * s.v); }}},
    {Op::kExpm1, {[](const Site& s) { return plain(s.g * (s.v + 1.0f)); }}},
    {Op::kLog, {[](const Site& s) { return plain(s.g / s.x); }}},
    {Op::kLog1p, {[](const Site& s) { return plain(s.g / (s.x + 1.0f)); }}},
    {Op::kSqrt, {[](const Site& s) { return scaled(0.5, s.g / s.v); }}},
    {Op::kRsqrt, {[](const Site& s) { return scaled(-0.5, s.g * (s.v / s.x)); }}},
    {Op::kReciprocal, {[](const Site& s) { return scaled(-1, s.g * s.v * s.v); }}},
    {Op::kSin, {[](const Site& s) { return plain(s.g * make(Op::kCos, s.x)); }}},
    {Op::kCos, {[](const Site& s) { return scaled(-1, s.g * make(Op::kSin, s.x)); }}},
    {Op::kTan, {[](const Site& s) { return plain(s.g * (s.v * s.v + 1.0f)); }}},
    {Op::kAtan, {[](const Site& s) { return plain(s.g / (s.x * s.x + 1.0f)); }}},
    {Op::kTanh, {[](const Site& s) { return plain(s.g * (1.0f - s.v * s.v)); }}},
    {Op::kSigmoid, {[](const Site& s) { return plain(s.g * (s.v * (1.0f - s.v))); }}},
    {Op::kErf, {[](const Site& s) { return scaled(kTwoOverSqrtPi, s.g * make(Op::kExp, -(s.x * s.x))); }}},
    {Op::kErfc, {[](const Site& s) { return scaled(-kTwoOverSqrtPi, s.g * make(Op::kExp, -(s.x * s.x))); }}},
    {Op::kSoftplus, {[](const Site& s) { return plain(s.g * make(Op::kSigmoid, s.x)); }}},
    {Op::kRelu, {[](const Site& s) { return when(make(Op::kGt, s.x, constant(s.x, 0)), s.g); }}},
    {Op::kGelu, {[](const Site& s) { return plain(s.g * gelu_derivative(s.x)); }}},
    {Op::kGeluTanh, {[](const Site& s) { return scaled(0.5, s.g * twice_gelu_tanh_derivative(s.x)); }}},
    {Op::kSilu, {[](const Site& s) { return plain(s.g * silu_derivative(s)); }}},
    {Op::kEq},
    {Op::kNe},
    {Op::kLt},
    {Op::kLe},
    {Op::kGt},
    {Op::kGe},
    {Op::kAnd},
    {Op::kOr},
    {Op::kXor},
    {Op::kNot},
    // The first argument is the condition, which has no adjoint.
    {Op::kSelect,
     {nullptr, [](const Site& s) { return when(s.x, s.g); }, [](const Site& s) { return unless(s.x, s.g); }}},
    {Op::kSurrogate, {nullptr, [](const Site& s) { return plain(s.g); }}},
    // Only the cast of an f32 has an f32 argument, and it is the identity.
    {Op::kToF32, {[](const Site& s) { return plain(s.g); }}},
    {Op::kToI32},
    {Op::kToBool},
}};

constexpr bool in_enum_order() {
  for (int i = 0; i < kOpCount; ++i) {
    if (static_cast<int>(kRules[static_cast<std::size_t>(i)].op) != i) return false;
  }
  return true;
}
static_assert(in_enum_order(), "kRules must list the ops in the order of enum Op");

const Rule& rule_of(Op op) { return kRules[static_cast<std::size_t>(op)]; }

}  // namespace

bool is_differentiable(Op op, std::size_t arg) {
  return arg < rule_of(op).partials.size() && rule_of(op).partials[arg] != nullptr;
}

bool is_differentiable(Op op) {
  return std::ranges::any_of(rule_of(op).partials, [](Partial partial) { return partial != nullptr; });
}

Contribution contribution(ir::Builder& builder, NodeId id, NodeId adjoint, std::size_t arg) {
  const Node node = builder.node(id);  // a copy: the builder's storage moves when a rule makes nodes
  const Rule& rule = rule_of(node.op);
  if (!is_differentiable(node.op, arg)) {
    fail_bug("'", ir::info(node.op).name, "' has no derivative with respect to its argument ", arg);
  }
  const auto value = [&](NodeId which) { return Value{&builder, which}; };
  return rule.partials[arg]({value(adjoint), value(id), value(node.args[0]), value(node.args[1]), value(node.args[2])});
}

}  // namespace scoremod::autodiff
