#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>

#include "base/fail.hpp"
#include "ir/op_table.hpp"

/// Each op on plain numbers. The functions are inline, so that a constant op leaves no branch over ops in the compiled
/// code.
namespace scoremod::ir::scalar {

// i32 arithmetic wraps: it is done on unsigned words, where C++ defines that.
inline std::int32_t wrap(std::uint32_t x) { return static_cast<std::int32_t>(x); }
inline std::uint32_t word(std::int32_t x) { return static_cast<std::uint32_t>(x); }

inline std::int32_t floor_div(std::int32_t x, std::int32_t y) {
  if (y == 0) return 0;
  if (y == -1) return wrap(0u - word(x));
  const std::int32_t quotient = x / y;
  return quotient - ((x % y != 0 && (x < 0) != (y < 0)) ? 1 : 0);
}

inline std::int32_t eval_int(Op op, std::int32_t x, std::int32_t y) {
  switch (op) {
    case Op::kAdd: return wrap(word(x) + word(y));
    case Op::kSub: return wrap(word(x) - word(y));
    case Op::kMul: return wrap(word(x) * word(y));
    case Op::kFloorDiv: return floor_div(x, y);
    case Op::kMod: return y == 0 ? x : wrap(word(x) - word(floor_div(x, y)) * word(y));
    case Op::kMin: return x < y ? x : y;
    case Op::kMax: return x > y ? x : y;
    case Op::kNeg: return wrap(0u - word(x));
    case Op::kAbs: return x < 0 ? wrap(0u - word(x)) : x;
    case Op::kSign: return (x > 0) - (x < 0);
    default: fail_bug("'", info(op).name, "' has no i32 meaning");
  }
}

template <class Real>
Real floor_mod(Real x, Real y) {
  const Real remainder = std::fmod(x, y);
  return remainder != 0 && (remainder < 0) != (y < 0) ? remainder + y : remainder;
}

template <class Real>
Real smaller(Real x, Real y) {
  return std::isnan(x) || x < y ? x : y;
}

template <class Real>
Real larger(Real x, Real y) {
  return std::isnan(x) || x > y ? x : y;
}

template <class Real>
Real sigmoid(Real x) {
  // Each branch's exp stays finite.
  if (x >= 0) return 1 / (1 + std::exp(-x));
  const Real e = std::exp(x);
  return e / (1 + e);
}

template <class Real>
Real softplus(Real x) {
  if (std::isnan(x)) return x;
  return larger(x, Real(0)) + std::log1p(std::exp(-std::abs(x)));
}

/// x times a gate in [0, 1] whose limits at -inf and inf are 0 and 1.
template <class Real>
Real gated(Real x, Real gate) {
  return gate == 0 ? Real(0) : x * gate;
}

template <class Real>
Real gelu(Real x) {
  return gated(x, std::erfc(-x / std::numbers::sqrt2_v<Real>) / 2);
}

template <class Real>
Real gelu_tanh(Real x) {
  const Real inner = std::sqrt(2 / std::numbers::pi_v<Real>) * (x + Real(0.044715) * x * x * x);
  // (1 + tanh(u)) / 2 is sigmoid(2 u), which keeps its precision far below zero.
  return gated(x, sigmoid(2 * inner));
}

template <class Real>
Real eval_float_unary(Op op, Real x) {
  switch (op) {
    case Op::kNeg: return -x;
    case Op::kAbs: return std::abs(x);
    case Op::kSign: return std::isnan(x) || x == 0 ? x : x > 0 ? Real(1) : Real(-1);
    case Op::kFloor: return std::floor(x);
    case Op::kCeil: return std::ceil(x);
    case Op::kRound: return std::nearbyint(x);
    case Op::kExp: return std::exp(x);
    case Op::kExp2: return std::exp2(x);
    case Op::kExpm1: return std::expm1(x);
    case Op::kLog: return std::log(x);
    case Op::kLog1p: return std::log1p(x);
    case Op::kSqrt: return std::sqrt(x);
    case Op::kRsqrt: return 1 / std::sqrt(x);
    case Op::kReciprocal: return 1 / x;
    case Op::kSin: return std::sin(x);
    case Op::kCos: return std::cos(x);
    case Op::kTan: return std::tan(x);
    case Op::kAtan: return std::atan(x);
    case Op::kTanh: return std::tanh(x);
    case Op::kSigmoid: return sigmoid(x);
    case Op::kErf: return std::erf(x);
    case Op::kErfc: return std::erfc(x);
    case Op::kSoftplus: return softplus(x);
    case Op::kRelu: return std::isnan(x) || x > 0 ? x : Real(0);
    case Op::kGelu: return gelu(x);
    case Op::kGeluTanh: return gelu_tanh(x);
    case Op::kSilu: return gated(x, sigmoid(x));
    default: fail_bug("'", info(op).name, "' is no function of one f32");
  }
}

template <class Real>
Real eval_float_binary(Op op, Real x, Real y) {
  switch (op) {
    case Op::kAdd: return x + y;
    case Op::kSub: return x - y;
    case Op::kMul: return x * y;
    case Op::kDiv: return x / y;
    case Op::kMod: return floor_mod(x, y);
    case Op::kPow: return std::pow(x, y);
    case Op::kAtan2: return std::atan2(x, y);
    case Op::kSurrogate: return x;
    case Op::kMin: return smaller(x, y);
    case Op::kMax: return larger(x, y);
    default: fail_bug("'", info(op).name, "' is no function of two f32");
  }
}

template <class T>
bool compare(Op op, T x, T y) {
  switch (op) {
    case Op::kEq: return x == y;
    case Op::kNe: return x != y;
    case Op::kLt: return x < y;
    case Op::kLe: return x <= y;
    case Op::kGt: return x > y;
    case Op::kGe: return x >= y;
    default: fail_bug("'", info(op).name, "' is no comparison");
  }
}

template <class Real>
std::int32_t to_i32(Real x) {
  using Limits = std::numeric_limits<std::int32_t>;
  if (std::isnan(x)) return 0;
  if (x <= static_cast<Real>(Limits::min())) return Limits::min();
  // The largest i32 is no float; its upper neighbour 2^31 is.
  if (x >= Real(2147483648.0)) return Limits::max();
  return static_cast<std::int32_t>(x);
}

inline bool eval_bool(Op op, bool x, bool y) {
  switch (op) {
    case Op::kAnd: return x && y;
    case Op::kOr: return x || y;
    case Op::kXor: return x != y;
    case Op::kNot: return !x;
    default: fail_bug("'", info(op).name, "' has no bool meaning");
  }
}

}  // namespace scoremod::ir::scalar
