#include "check/value_range.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "ir/op_table.hpp"
#include "ir/scalar_eval.hpp"

namespace scoremod::checking {
namespace {

constexpr double kAny = kTameFloat;
constexpr double kExactInteger = 1 << 24;

/// A function of one f32 that grows or falls throughout [low, high], where it is tame.
struct Monotone {
  Op op;
  double low, high;
};

constexpr std::array kMonotone{
    Monotone{Op::kNeg, -kAny, kAny},  Monotone{Op::kSign, -kAny, kAny},     Monotone{Op::kFloor, -kAny, kAny},
    Monotone{Op::kCeil, -kAny, kAny}, Monotone{Op::kRound, -kAny, kAny},    Monotone{Op::kExp, -kAny, 8},
    Monotone{Op::kExp2, -kAny, 12},   Monotone{Op::kExpm1, -kAny, 8},       Monotone{Op::kLog, 0.1, kAny},
    Monotone{Op::kLog1p, -0.9, kAny}, Monotone{Op::kSqrt, 0.05, kAny},      Monotone{Op::kRsqrt, 0.05, kAny},
    Monotone{Op::kTan, -1.2, 1.2},    Monotone{Op::kTanh, -kAny, kAny},     Monotone{Op::kSigmoid, -kAny, kAny},
    Monotone{Op::kErf, -kAny, kAny},  Monotone{Op::kSoftplus, -kAny, kAny}, Monotone{Op::kRelu, -kAny, kAny},
    Monotone{Op::kAtan, -kAny, kAny}, Monotone{Op::kErfc, -kAny, kAny},
};

ValueRange hull(std::initializer_list<double> corners) {
  const auto [low, high] = std::minmax(corners);
  return {low, high, false, false};
}

double apply(Op op, double x) {
  Node node;
  node.op = op;
  ir::Scalar<double> arg;
  arg.f = x;
  return ir::eval_op<double>(node, Type::kF32, std::span(&arg, 1)).f;
}

std::optional<ValueRange> float_unary(Op op, const ValueRange& x) {
  for (const Monotone& row : kMonotone) {
    if (row.op != op) continue;
    if (x.low < row.low || x.high > row.high) return std::nullopt;
    return hull({apply(op, x.low), apply(op, x.high)});
  }
  const double magnitude = std::max(std::abs(x.low), std::abs(x.high));
  switch (op) {
    case Op::kAbs: return hull({0, magnitude});
    case Op::kReciprocal:
      if (x.low < 0.1 && x.high > -0.1) return std::nullopt;
      return hull({1 / x.low, 1 / x.high});
    case Op::kSin:
    case Op::kCos:
      // The argument's rounding error comes through in full.
      if (magnitude > 50) return std::nullopt;
      return hull({-1, 1});
    case Op::kGelu:
    case Op::kGeluTanh:
    case Op::kSilu: return hull({-0.3, std::max(x.high, 0.0)});  // -0.279 is silu's least value
    default: return std::nullopt;
  }
}

std::optional<ValueRange> product(const ValueRange& x, const ValueRange& y) {
  return hull({x.low * y.low, x.low * y.high, x.high * y.low, x.high * y.high});
}

std::optional<ValueRange> number_binary(Op op, const ValueRange& x, const ValueRange& y) {
  const double largest = std::max({std::abs(x.low), std::abs(x.high), std::abs(y.low), std::abs(y.high)});
  const bool may_be_zero = y.low < 0.1 && y.high > -0.1;
  switch (op) {
    case Op::kAdd: return hull({x.low + y.low, x.high + y.high});
    case Op::kSub: return hull({x.low - y.high, x.high - y.low});
    case Op::kMul: return product(x, y);
    case Op::kMin: return hull({std::min(x.low, y.low), std::min(x.high, y.high)});
    case Op::kMax: return hull({std::max(x.low, y.low), std::max(x.high, y.high)});
    case Op::kDiv:
      if (may_be_zero) return std::nullopt;
      return product(x, hull({1 / y.low, 1 / y.high}));
    case Op::kMod: return hull({-largest, largest});
    case Op::kFloorDiv: return hull({-largest, largest});
    case Op::kPow:
      if (x.low < 0.1 || x.high > 10 || y.low < -3 || y.high > 3) return std::nullopt;
      return hull({std::pow(x.low, y.low), std::pow(x.low, y.high), std::pow(x.high, y.low), std::pow(x.high, y.high)});
    case Op::kAtan2:
      // Away from the jump at the negative x and from the origin.
      if (y.low < 0.1) return std::nullopt;
      return hull({-1.6, 1.6});
    case Op::kSurrogate: return x;
    default: return std::nullopt;
  }
}

/// Both round down, and a remainder has the divisor's sign.
std::optional<ValueRange> int_quotient(Op op, const ValueRange& x, const ValueRange& y) {
  if (y.low < 1) return number_binary(op, x, y);
  if (op == Op::kMod) return hull({0, x.low < 0 ? y.high - 1 : std::min(x.high, y.high - 1)});
  return hull(
      {std::floor(x.low / y.low), std::floor(x.low / y.high), std::floor(x.high / y.low), std::floor(x.high / y.high)});
}

std::optional<ValueRange> int_unary(Op op, const ValueRange& x) {
  switch (op) {
    case Op::kNeg: return hull({-x.high, -x.low});
    case Op::kAbs: return hull({0, std::max(std::abs(x.low), std::abs(x.high))});
    default: return hull({-1, 1});
  }
}

std::optional<ValueRange> cast(Op op, Type from, const ValueRange& x) {
  if (op == Op::kToBool) return ValueRange{};
  if (from == Type::kBool) return ValueRange{0, 1, true, true};
  if (op == Op::kToI32) return hull({std::trunc(x.low), std::trunc(x.high)});
  return x;
}

std::optional<ValueRange> bounds(Op op, Type result_type, std::span<const Type> types,
                                 std::span<const ValueRange> args) {
  switch (ir::info(op).signature) {
    case ir::Signature::kFloatUnary: return float_unary(op, args[0]);
    case ir::Signature::kNumberUnary:
      return result_type == Type::kF32 ? float_unary(op, args[0]) : int_unary(op, args[0]);
    case ir::Signature::kFloatBinary:
    case ir::Signature::kNumberBinary:
    case ir::Signature::kIntBinary:
      // An f32 modulo something small has few right digits.
      if (op == Op::kMod && result_type == Type::kF32 && args[1].low < 0.1 && args[1].high > -0.1) return std::nullopt;
      if (result_type == Type::kI32 && (op == Op::kMod || op == Op::kFloorDiv))
        return int_quotient(op, args[0], args[1]);
      return number_binary(op, args[0], args[1]);
    case ir::Signature::kSelect:
      return hull({std::min(args[1].low, args[2].low), std::max(args[1].high, args[2].high)});
    case ir::Signature::kCast: return cast(op, types[0], args[0]);
    default: return ValueRange{};
  }
}

/// Ops whose f32 result has no rounding error of its own.
bool never_rounds(Op op) {
  constexpr std::array kOps{Op::kNeg, Op::kAbs, Op::kSign, Op::kFloor,  Op::kCeil,  Op::kRound,
                            Op::kMin, Op::kMax, Op::kRelu, Op::kSelect, Op::kToI32, Op::kToBool};
  return std::find(kOps.begin(), kOps.end(), op) != kOps.end();
}

}  // namespace

std::optional<ValueRange> tame_result(Op op, Type result_type, std::span<const Type> types,
                                      std::span<const ValueRange> args) {
  auto result = bounds(op, result_type, types, args);
  if (!result) return std::nullopt;
  const double limit = result_type == Type::kI32 ? kTameInt : kTameFloat;
  if (result_type != Type::kBool && !(result->low >= -limit && result->high <= limit)) return std::nullopt;

  const bool exact_args = std::all_of(args.begin(), args.end(), [](const ValueRange& r) { return r.exact; });
  const bool whole_args = std::all_of(args.begin(), args.end(), [](const ValueRange& r) { return r.integral; });
  if (result_type != Type::kF32) {
    *result = {result->low, result->high, exact_args, true};
    return result;
  }
  const bool select = op == Op::kSelect;
  const bool stays_whole = op == Op::kAdd || op == Op::kSub || op == Op::kMul || never_rounds(op);
  const bool whole = select ? args[1].integral && args[2].integral : whole_args && stays_whole;
  const bool rounds_to_whole = op == Op::kFloor || op == Op::kCeil || op == Op::kRound || op == Op::kSign;
  const bool from_int = op == Op::kToF32 && types[0] != Type::kF32;
  const bool small = std::max(std::abs(result->low), std::abs(result->high)) <= kExactInteger;
  result->integral = (whole || rounds_to_whole || from_int || (op == Op::kToF32 && args[0].integral)) && small;
  result->exact = exact_args && (never_rounds(op) || op == Op::kToF32 || (whole && small));
  return result;
}

bool has_jump(Op op, Type arg_type) {
  if (arg_type != Type::kF32) return false;
  switch (ir::info(op).signature) {
    case ir::Signature::kEquality:
    case ir::Signature::kOrdering: return true;
    case ir::Signature::kCast: return op != Op::kToF32;
    default: break;
  }
  // A surrogate's derivative is not that of its value.
  if (op == Op::kSurrogate) return true;
  return op == Op::kFloor || op == Op::kCeil || op == Op::kRound || op == Op::kSign || op == Op::kMod;
}

bool has_kink(Op op, Type arg_type) {
  if (has_jump(op, arg_type)) return true;
  return arg_type == Type::kF32 && (op == Op::kAbs || op == Op::kMin || op == Op::kMax || op == Op::kRelu);
}

}  // namespace scoremod::checking
