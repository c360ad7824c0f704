// Functions of f32 vectors, compiled once for each instruction set. Highway's math library computes them within its
// domain. Lanes outside it (NaN, infinities, huge arguments) go through the C library one by one.

#if defined(SCOREMOD_BACKEND_CPU_VECTOR_MATH_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SCOREMOD_BACKEND_CPU_VECTOR_MATH_INL_H
#undef SCOREMOD_BACKEND_CPU_VECTOR_MATH_INL_H
#else
#define SCOREMOD_BACKEND_CPU_VECTOR_MATH_INL_H
#endif

#include <cmath>
#include <cstdint>
#include <limits>

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace scoremod::backend::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using FloatTag = hn::ScalableTag<float>;
using IntTag = hn::RebindToSigned<FloatTag>;
using FloatVec = hn::Vec<FloatTag>;
using IntVec = hn::Vec<IntTag>;
using FloatMask = hn::Mask<FloatTag>;

/// fast(x) where `in_range`, slow(lane) elsewhere.
template <class Fast, class Slow>
HWY_INLINE FloatVec guarded(FloatVec x, FloatMask in_range, Fast fast, Slow slow) {
  const FloatTag d;
  if (HWY_LIKELY(hn::AllTrue(d, in_range))) return fast(x);
  HWY_ALIGN float lanes[hn::MaxLanes(d)];
  hn::Store(x, d, lanes);
  for (std::size_t i = 0; i < hn::Lanes(d); ++i) lanes[i] = slow(lanes[i]);
  return hn::IfThenElse(in_range, fast(hn::IfThenElseZero(in_range, x)), hn::Load(d, lanes));
}

/// exp(x) for x <= 0, NaN for NaN, 0 for -inf alone. Below -87.3 it is exp(-87.3), near the smallest normal float, so
/// that a weight is 0 only for a masked key. Elsewhere the relative error is below 2 ulp.
HWY_INLINE FloatVec exp_nonpositive(FloatVec argument) {
  const FloatTag d;
  const IntTag di;
  // ln of the smallest normal float is -87.337.
  const FloatVec x = hn::Max(argument, hn::Set(d, -87.3f));
  // Adding 1.5 * 2^23 rounds to an integer n, which then stands in the lowest bits.
  const FloatVec rounder = hn::Set(d, 12582912.0f);
  const FloatVec shifted = hn::MulAdd(x, hn::Set(d, 1.44269504f), rounder);
  const FloatVec n = hn::Sub(shifted, rounder);
  // ln 2 in two parts; n times the first is exact.
  const FloatVec r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x));
  // (e^r - 1 - r) / r^2 by a polynomial through the Chebyshev points of |r| <= ln(2) / 2: relative error 1e-8.
  FloatVec p = hn::MulAdd(r, hn::Set(d, 0.001392617612f), hn::Set(d, 0.008363173075f));
  p = hn::MulAdd(r, p, hn::Set(d, 0.04166655466f));
  p = hn::MulAdd(r, p, hn::Set(d, 0.1666657703f));
  p = hn::MulAdd(r, p, hn::Set(d, 0.5f));
  p = hn::MulAdd(hn::Mul(r, r), p, r);
  p = hn::Add(p, hn::Set(d, 1.0f));
  const IntVec exponent = hn::ShiftLeft<23>(hn::BitCast(di, shifted));
  const FloatVec y = hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent));
  const FloatVec result = hn::IfThenZeroElse(hn::Eq(argument, hn::Set(d, -std::numeric_limits<float>::infinity())), y);
  // Adding to the exponent bits may turn one NaN into another number.
  return hn::IfThenElse(hn::IsNaN(argument), argument, result);
}

HWY_INLINE FloatVec exp_any(FloatVec x) {
  const FloatTag d;
  return guarded(
      x, hn::Le(hn::Abs(x), hn::Set(d, 87.0f)), [](FloatVec v) { return hn::Exp(FloatTag(), v); },
      [](float v) { return std::exp(v); });
}

HWY_INLINE FloatVec exp2_any(FloatVec x) {
  const FloatTag d;
  return guarded(
      x, hn::Le(hn::Abs(x), hn::Set(d, 125.0f)),
      [](FloatVec v) {
        const FloatTag df;
        const IntTag di;
        const FloatVec n = hn::Round(v);
        const FloatVec fraction = hn::Exp(df, hn::Mul(hn::Sub(v, n), hn::Set(df, 0.69314718056f)));
        const IntVec bits = hn::Add(hn::BitCast(di, fraction), hn::ShiftLeft<23>(hn::ConvertTo(di, n)));
        return hn::BitCast(df, bits);
      },
      [](float v) { return std::exp2(v); });
}

HWY_INLINE FloatVec expm1_any(FloatVec x) {
  const FloatTag d;
  return guarded(
      x, hn::Le(hn::Abs(x), hn::Set(d, 87.0f)), [](FloatVec v) { return hn::Expm1(FloatTag(), v); },
      [](float v) { return std::expm1(v); });
}

HWY_INLINE FloatVec log_any(FloatVec x) {
  const FloatTag d;
  const FloatMask in_range = hn::And(hn::Ge(x, hn::Set(d, 1.17549435e-38f)), hn::Le(x, hn::Set(d, 3.40282347e+38f)));
  // A lane out of range is evaluated at 0 and its result dropped.
  return guarded(
      x, in_range, [](FloatVec v) { return hn::Log(FloatTag(), v); }, [](float v) { return std::log(v); });
}

HWY_INLINE FloatVec log1p_any(FloatVec x) {
  const FloatTag d;
  const FloatMask in_range = hn::And(hn::Ge(x, hn::Set(d, -0.999f)), hn::Le(x, hn::Set(d, 1e38f)));
  return guarded(
      x, in_range, [](FloatVec v) { return hn::Log1p(FloatTag(), v); }, [](float v) { return std::log1p(v); });
}

HWY_INLINE FloatVec sin_any(FloatVec x) {
  const FloatTag d;
  return guarded(
      x, hn::Le(hn::Abs(x), hn::Set(d, 30000.0f)), [](FloatVec v) { return hn::Sin(FloatTag(), v); },
      [](float v) { return std::sin(v); });
}

HWY_INLINE FloatVec cos_any(FloatVec x) {
  const FloatTag d;
  return guarded(
      x, hn::Le(hn::Abs(x), hn::Set(d, 30000.0f)), [](FloatVec v) { return hn::Cos(FloatTag(), v); },
      [](float v) { return std::cos(v); });
}

HWY_INLINE FloatVec tanh_any(FloatVec x) {
  const FloatTag d;
  const FloatVec magnitude = hn::Abs(x);
  // Beyond 10 the nearest float is 1. The order of arguments keeps NaN, whichever Min returns.
  const FloatVec clamped = hn::IfThenElse(hn::Gt(magnitude, hn::Set(d, 10.0f)), hn::Set(d, 10.0f), magnitude);
  const FloatVec e = hn::Expm1(d, hn::Add(clamped, clamped));
  return hn::CopySign(hn::Div(e, hn::Add(e, hn::Set(d, 2.0f))), x);
}

HWY_INLINE FloatVec sigmoid_any(FloatVec x) {
  const FloatTag d;
  const FloatVec one = hn::Set(d, 1.0f);
  // exp(-|x|) never overflows; each sign has its own formula.
  const FloatVec e = exp_any(hn::Neg(hn::Abs(x)));
  const FloatVec numerator = hn::IfThenElse(hn::Ge(x, hn::Zero(d)), one, e);
  return hn::Div(numerator, hn::Add(one, e));
}

/// x * gate, and 0 where the gate is 0.
HWY_INLINE FloatVec gated(FloatVec x, FloatVec gate) {
  return hn::IfThenZeroElse(hn::Eq(gate, hn::Zero(FloatTag())), hn::Mul(x, gate));
}

HWY_INLINE FloatVec gelu_tanh_any(FloatVec x) {
  const FloatTag d;
  const FloatVec cubic = hn::Mul(hn::Mul(hn::Mul(hn::Set(d, 0.044715f), x), x), x);
  const FloatVec inner = hn::Mul(hn::Set(d, 0.797884561f), hn::Add(x, cubic));  // sqrt(2 / pi)
  return gated(x, sigmoid_any(hn::Add(inner, inner)));
}

HWY_INLINE FloatVec softplus_any(FloatVec x) {
  const FloatTag d;
  const FloatVec tail = log1p_any(exp_any(hn::Neg(hn::Abs(x))));
  const FloatVec sum = hn::Add(hn::IfThenZeroElse(hn::Lt(x, hn::Zero(d)), x), tail);
  return hn::IfThenElse(hn::IsNaN(x), x, sum);
}

HWY_INLINE FloatVec min_nan(FloatVec x, FloatVec y) { return hn::IfThenElse(hn::Or(hn::IsNaN(x), hn::Lt(x, y)), x, y); }

HWY_INLINE FloatVec max_nan(FloatVec x, FloatVec y) { return hn::IfThenElse(hn::Or(hn::IsNaN(x), hn::Gt(x, y)), x, y); }

/// floor(x / y) in double, which is exact. A quotient that is no integer differs from the next by 1 / |y| or more,
/// relatively 2^-31, so rounding cannot reach it. The divisor is not 0, and the quotient not 2^31.
template <class D>
HWY_INLINE hn::Vec<D> floor_div_by_double(D d, hn::Vec<D> x, hn::Vec<D> y) {
  const hn::Rebind<double, D> wide;
  return hn::DemoteTo(d, hn::Floor(hn::Div(hn::PromoteTo(wide, x), hn::PromoteTo(wide, y))));
}

/// As ir::floor_div() of each lane: rounded down, 0 for a divisor of 0, wrapped for the quotient 2^31.
HWY_INLINE IntVec floor_div_any(IntVec x, IntVec y) {
  const IntTag d;
  const IntVec zero = hn::Zero(d), minus_one = hn::Set(d, -1);
  // No lane divides by 0, and none by -1, whose quotient may be too large.
  const auto is_special = hn::Or(hn::Eq(y, zero), hn::Eq(y, minus_one));
  const IntVec divisor = hn::IfThenElse(is_special, hn::Set(d, 1), y);
#if HWY_TARGET == HWY_SCALAR
  const IntVec quotient = floor_div_by_double(d, x, divisor);
#else
  const hn::Half<IntTag> half;
  const IntVec quotient =
      hn::Combine(d, floor_div_by_double(half, hn::UpperHalf(half, x), hn::UpperHalf(half, divisor)),
                  floor_div_by_double(half, hn::LowerHalf(half, x), hn::LowerHalf(half, divisor)));
#endif
  return hn::IfThenElse(is_special, hn::And(hn::Neg(x), y), quotient);
}

/// As ir::eval_int() of each lane: the remainder of floor_div, with the divisor's sign; x for a divisor of 0.
HWY_INLINE IntVec mod_any(IntVec x, IntVec y) { return hn::Sub(x, hn::Mul(floor_div_any(x, y), y)); }

}  // namespace scoremod::backend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
