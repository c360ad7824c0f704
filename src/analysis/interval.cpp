#include "analysis/interval.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include "analysis/floor_div.hpp"
#include "ir/builder.hpp"

namespace scoremod::analysis {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kMinInt = std::numeric_limits<std::int32_t>::min();
constexpr double kMaxInt = std::numeric_limits<std::int32_t>::max();
constexpr double kMaxFloat = std::numeric_limits<float>::max();
constexpr double kMinNormalFloat = std::numeric_limits<float>::min();
constexpr double kMaxExactFloat = 16777216;  // 2^24: integers up to it are exact in f32

constexpr ValueRange kTrue{1, 1, false};
constexpr ValueRange kFalse{0, 0, false};
constexpr ValueRange kEither{0, 1, false};

ValueRange truth(bool can_be_true, bool can_be_false) {
  return can_be_true ? (can_be_false ? kEither : kTrue) : kFalse;
}

ValueRange hull(const ValueRange& x, const ValueRange& y) {
  return {std::min(x.lo, y.lo), std::max(x.hi, y.hi), x.maybe_nan || y.maybe_nan};
}

ValueRange int_range(double lo, double hi) {
  if (lo < kMinInt || hi > kMaxInt) return everything(Type::kI32);
  return {lo, hi, false};
}

bool is_exact_integer(double x) { return std::abs(x) <= kMaxExactFloat && std::trunc(x) == x; }

/// The range of an f32 result whose exact value lies in lo..hi. Widened by more than one rounding, flush to zero
/// included, unless the ends are exact. Rounding is monotonic, so a number between two f32 rounds to between them.
ValueRange rounded(double lo, double hi, bool maybe_nan, bool integral) {
  if (integral && is_exact_integer(lo) && is_exact_integer(hi)) return {lo, hi, maybe_nan};
  constexpr double kRelative = 0x1p-22;
  lo -= std::abs(lo) * kRelative + kMinNormalFloat;
  hi += std::abs(hi) * kRelative + kMinNormalFloat;
  return {lo < -kMaxFloat ? -kInf : std::min(lo, kMaxFloat), hi > kMaxFloat ? kInf : std::max(hi, -kMaxFloat),
          maybe_nan};
}

bool is_finite(const ValueRange& x) { return std::isfinite(x.lo) && std::isfinite(x.hi); }

ValueRange corners(std::array<double, 4> values, bool maybe_nan, bool integral) {
  const auto [lo, hi] = std::minmax_element(values.begin(), values.end());
  return rounded(*lo, *hi, maybe_nan, integral);
}

bool has_integer_ends(const ValueRange& x) { return is_exact_integer(x.lo) && is_exact_integer(x.hi); }

ValueRange float_arithmetic(Op op, const ValueRange& x, const ValueRange& y) {
  if (!is_finite(x) || !is_finite(y)) return everything(Type::kF32);
  const bool nan = x.maybe_nan || y.maybe_nan;
  const bool integral = has_integer_ends(x) && has_integer_ends(y);
  switch (op) {
    case Op::kAdd: return rounded(x.lo + y.lo, x.hi + y.hi, nan, integral);
    case Op::kSub: return rounded(x.lo - y.hi, x.hi - y.lo, nan, integral);
    case Op::kMul: return corners({x.lo * y.lo, x.lo * y.hi, x.hi * y.lo, x.hi * y.hi}, nan, integral);
    default:
      // A divisor that may be flushed to zero counts as zero.
      if (y.lo <= kMinNormalFloat && y.hi >= -kMinNormalFloat) return everything(Type::kF32);
      return corners({x.lo / y.lo, x.lo / y.hi, x.hi / y.lo, x.hi / y.hi}, nan, false);
  }
}

ValueRange int_quotient(const ValueRange& x, const ValueRange& y) {
  if (y.lo <= 0 && y.hi >= 0) return everything(Type::kI32);
  double lo = kInf;
  double hi = -kInf;
  for (const double a : {x.lo, x.hi}) {
    for (const double b : {y.lo, y.hi}) {
      const auto quotient = static_cast<double>(floor_div(static_cast<std::int64_t>(a), static_cast<std::int64_t>(b)));
      lo = std::min(lo, quotient);
      hi = std::max(hi, quotient);
    }
  }
  return int_range(lo, hi);
}

ValueRange int_remainder(const ValueRange& x, const ValueRange& y) {
  if (y.lo <= 0 && y.hi >= 0) return everything(Type::kI32);
  if (y.is_point()) {
    // Within one period the remainder runs with x.
    const auto period = static_cast<std::int64_t>(y.lo);
    const std::int64_t first = floor_div(static_cast<std::int64_t>(x.lo), period);
    if (first == floor_div(static_cast<std::int64_t>(x.hi), period)) {
      const auto base = static_cast<double>(first * period);
      return {x.lo - base, x.hi - base, false};
    }
  }
  return y.lo > 0 ? ValueRange{0, y.hi - 1, false} : ValueRange{y.lo + 1, 0, false};
}

ValueRange int_arithmetic(Op op, const ValueRange& x, const ValueRange& y) {
  switch (op) {
    case Op::kAdd: return int_range(x.lo + y.lo, x.hi + y.hi);
    case Op::kSub: return int_range(x.lo - y.hi, x.hi - y.lo);
    case Op::kMul: {
      const std::array<double, 4> values{x.lo * y.lo, x.lo * y.hi, x.hi * y.lo, x.hi * y.hi};
      const auto [lo, hi] = std::minmax_element(values.begin(), values.end());
      return int_range(*lo, *hi);
    }
    case Op::kFloorDiv: return int_quotient(x, y);
    case Op::kMod: return int_remainder(x, y);
    default: return everything(Type::kI32);
  }
}

double sign(double x) { return x > 0 ? 1 : x < 0 ? -1 : 0; }

ValueRange magnitude(const ValueRange& x, Type type) {
  const double lo = x.lo > 0 ? x.lo : x.hi < 0 ? -x.hi : 0;
  const double hi = std::max(-x.lo, x.hi);
  return type == Type::kI32 ? int_range(lo, hi) : ValueRange{lo, hi, x.maybe_nan};
}

ValueRange unary(const Node& node, const ValueRange& x) {
  constexpr double kSlack = 1e-6;  // more than any implementation of these functions errs
  switch (node.op) {
    case Op::kNeg: return node.type == Type::kI32 ? int_range(-x.hi, -x.lo) : ValueRange{-x.hi, -x.lo, x.maybe_nan};
    case Op::kAbs: return magnitude(x, node.type);
    case Op::kSign: return {sign(x.lo), sign(x.hi), x.maybe_nan};
    case Op::kFloor: return {std::floor(x.lo), std::floor(x.hi), x.maybe_nan};
    case Op::kCeil: return {std::ceil(x.lo), std::ceil(x.hi), x.maybe_nan};
    case Op::kRound: return {std::nearbyint(x.lo), std::nearbyint(x.hi), x.maybe_nan};
    case Op::kRelu: return {std::max(x.lo, 0.0), std::max(x.hi, 0.0), x.maybe_nan};
    case Op::kExp:
    case Op::kExp2: return {0, kInf, x.maybe_nan};
    case Op::kTanh:
    case Op::kErf: return {-1 - kSlack, 1 + kSlack, x.maybe_nan};
    case Op::kSigmoid: return {-kSlack, 1 + kSlack, x.maybe_nan};
    case Op::kAtan: return {-1.6, 1.6, x.maybe_nan};
    case Op::kErfc: return {-kSlack, 2 + kSlack, x.maybe_nan};
    default: return everything(node.type);
  }
}

ValueRange binary(const Node& node, const ValueRange& x, const ValueRange& y) {
  const bool nan = x.maybe_nan || y.maybe_nan;
  switch (node.op) {
    case Op::kMin: return {std::min(x.lo, y.lo), std::min(x.hi, y.hi), nan};
    case Op::kMax: return {std::max(x.lo, y.lo), std::max(x.hi, y.hi), nan};
    case Op::kAdd:
    case Op::kSub:
    case Op::kMul: return node.type == Type::kI32 ? int_arithmetic(node.op, x, y) : float_arithmetic(node.op, x, y);
    case Op::kDiv: return float_arithmetic(node.op, x, y);
    case Op::kFloorDiv: return int_arithmetic(node.op, x, y);
    case Op::kMod: return node.type == Type::kI32 ? int_arithmetic(node.op, x, y) : everything(Type::kF32);
    default: return everything(node.type);
  }
}

ValueRange compare(Op op, const ValueRange& x, const ValueRange& y) {
  const bool nan = x.maybe_nan || y.maybe_nan;
  const bool equal_possible = x.lo <= y.hi && y.lo <= x.hi;
  const bool equal_certain = x.lo == x.hi && y.lo == y.hi && x.lo == y.lo;
  switch (op) {
    case Op::kEq: return truth(equal_possible, nan || !equal_certain);
    case Op::kNe: return truth(nan || !equal_certain, equal_possible);
    case Op::kLt: return truth(x.lo < y.hi, nan || x.hi >= y.lo);
    case Op::kLe: return truth(x.lo <= y.hi, nan || x.hi > y.lo);
    case Op::kGt: return truth(x.hi > y.lo, nan || x.lo <= y.hi);
    default: return truth(x.hi >= y.lo, nan || x.lo < y.hi);
  }
}

ValueRange logic(Op op, const ValueRange& x, const ValueRange& y) {
  switch (op) {
    case Op::kAnd: return {std::min(x.lo, y.lo), std::min(x.hi, y.hi), false};
    case Op::kOr: return {std::max(x.lo, y.lo), std::max(x.hi, y.hi), false};
    default: return x.is_point() && y.is_point() ? truth(x.lo != y.lo, x.lo == y.lo) : kEither;
  }
}

ValueRange cast(Op op, Type from, const ValueRange& x) {
  if (op == Op::kToF32) {
    if (from != Type::kI32) return x;
    // Rounding is monotonic: the ends round to the ends.
    return {static_cast<float>(x.lo), static_cast<float>(x.hi), false};
  }
  if (op == Op::kToI32) {
    if (from != Type::kF32) return x;
    ValueRange out{std::trunc(std::clamp(x.lo, kMinInt, kMaxInt)), std::trunc(std::clamp(x.hi, kMinInt, kMaxInt)),
                   false};
    if (x.maybe_nan) out = hull(out, {0, 0, false});
    return out;
  }
  const bool zero_possible = x.lo <= 0 && x.hi >= 0;
  return truth(x.lo != 0 || x.hi != 0 || x.maybe_nan, zero_possible);
}

ValueRange choose(const ValueRange& condition, const ValueRange& x, const ValueRange& y) {
  if (condition.always_true()) return x;
  return condition.always_false() ? y : hull(x, y);
}

}  // namespace

ValueRange everything(Type type) {
  switch (type) {
    case Type::kF32: return {-kInf, kInf, true};
    case Type::kI32: return {kMinInt, kMaxInt, false};
    case Type::kBool: break;
  }
  return kEither;
}

ValueRange constant_range(const Node& node) {
  switch (node.type) {
    case Type::kI32: return {double(ir::constant_i32(node)), double(ir::constant_i32(node)), false};
    case Type::kBool: return ir::constant_bool(node) ? kTrue : kFalse;
    case Type::kF32: break;
  }
  const double value = ir::constant_f32(node);
  return std::isnan(value) ? everything(Type::kF32) : ValueRange{value, value, false};
}

ValueRange range_of_op(const Node& node, Type arg_type, std::span<const ValueRange> args) {
  switch (node.op) {
    case Op::kEq:
    case Op::kNe:
    case Op::kLt:
    case Op::kLe:
    case Op::kGt:
    case Op::kGe: return compare(node.op, args[0], args[1]);
    case Op::kAnd:
    case Op::kOr:
    case Op::kXor: return logic(node.op, args[0], args[1]);
    case Op::kNot: return {1 - args[0].hi, 1 - args[0].lo, false};
    case Op::kSelect: return choose(args[0], args[1], args[2]);
    case Op::kToF32:
    case Op::kToI32:
    case Op::kToBool: return cast(node.op, arg_type, args[0]);
    default: return node.arg_count == 1 ? unary(node, args[0]) : binary(node, args[0], args[1]);
  }
}

}  // namespace scoremod::analysis
