// Functions that generated statements call: ir/scalar_eval.hpp's meaning of each op in float32, and loads of each
// dtype.
#pragma once

#ifdef __CUDACC_RTC__
#define SCOREMOD_FUNCTION static __device__ __forceinline__
SCOREMOD_FUNCTION float float_of_bits(unsigned bits) { return __uint_as_float(bits); }
// cvt.f32.f16.
SCOREMOD_FUNCTION float load_f16(const void* data, long long i) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(((const unsigned short*)data)[i]));
  return value;
}
// rcp.approx.ftz.f32, the hardware's reciprocal: one unit in the last place off at most.
SCOREMOD_FUNCTION float f32_reciprocal_near(float x) {
  float value;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(x));
  return value;
}
// ex2.approx.ftz.f32, the hardware's power of two: 2^-22 of it off at most.
SCOREMOD_FUNCTION float f32_exp2_near(float x) {
  float value;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(x));
  return value;
}
#else
#include <math.h>
#include <string.h>
#define SCOREMOD_FUNCTION static inline
SCOREMOD_FUNCTION float float_of_bits(unsigned bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}
SCOREMOD_FUNCTION float load_f16(const void* data, long long i) {
  const unsigned bits = ((const unsigned short*)data)[i], sign = (bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return float_of_bits(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  if (magnitude >= 0x0400u) return float_of_bits(sign | ((magnitude << 13) + (112u << 23)));
  return (sign != 0 ? -1.0f : 1.0f) * (float)magnitude * 0x1p-24f;
}
SCOREMOD_FUNCTION float f32_reciprocal_near(float x) { return 1.0f / x; }
SCOREMOD_FUNCTION float f32_exp2_near(float x) { return exp2f(x); }
#endif
SCOREMOD_FUNCTION float load_f32(const void* data, long long i) { return ((const float*)data)[i]; }
SCOREMOD_FUNCTION float load_bf16(const void* data, long long i) {
  return float_of_bits((unsigned)((const unsigned short*)data)[i] << 16);
}
SCOREMOD_FUNCTION int load_i32(const void* data, long long i) { return ((const int*)data)[i]; }
SCOREMOD_FUNCTION bool load_bool(const void* data, long long i) { return ((const unsigned char*)data)[i] != 0; }
SCOREMOD_FUNCTION int clamp_index(int i, int extent) { return i < 0 ? 0 : i >= extent ? extent - 1 : i; }

SCOREMOD_FUNCTION bool is_nan(float x) { return x != x; }
SCOREMOD_FUNCTION int i32_add(int x, int y) { return (int)((unsigned)x + (unsigned)y); }
SCOREMOD_FUNCTION int i32_sub(int x, int y) { return (int)((unsigned)x - (unsigned)y); }
SCOREMOD_FUNCTION int i32_mul(int x, int y) { return (int)((unsigned)x * (unsigned)y); }
SCOREMOD_FUNCTION int i32_neg(int x) { return (int)(0u - (unsigned)x); }
SCOREMOD_FUNCTION int i32_floor_div(int x, int y) {
  if (y == 0) return 0;
  if (y == -1) return i32_neg(x);
  const int quotient = x / y;
  return quotient - ((x % y != 0 && (x < 0) != (y < 0)) ? 1 : 0);
}
SCOREMOD_FUNCTION int i32_mod(int x, int y) { return y == 0 ? x : i32_sub(x, i32_mul(i32_floor_div(x, y), y)); }
// For a constant divisor above 0, which the compiler turns into a multiplication or a shift. ~x takes the place of a
// negative x, and the quotient is then the complement.
SCOREMOD_FUNCTION int i32_floor_div_positive(int x, int y) {
  const int sign = x >> 31;
  return (int)((unsigned)(x ^ sign) / (unsigned)y) ^ sign;
}
SCOREMOD_FUNCTION int i32_mod_positive(int x, int y) { return i32_sub(x, i32_mul(i32_floor_div_positive(x, y), y)); }
SCOREMOD_FUNCTION int i32_min(int x, int y) { return x < y ? x : y; }
SCOREMOD_FUNCTION int i32_max(int x, int y) { return x > y ? x : y; }
SCOREMOD_FUNCTION int i32_abs(int x) { return x < 0 ? i32_neg(x) : x; }
SCOREMOD_FUNCTION int i32_sign(int x) { return (x > 0) - (x < 0); }
SCOREMOD_FUNCTION int i32_of_f32(float x) {
  if (is_nan(x)) return 0;
  if (x <= -0x1p31f) return -2147483647 - 1;
  if (x >= 0x1p31f) return 2147483647;
  return (int)x;
}

SCOREMOD_FUNCTION float f32_mod(float x, float y) {
  const float remainder = fmodf(x, y);
  return remainder != 0.0f && (remainder < 0.0f) != (y < 0.0f) ? remainder + y : remainder;
}
SCOREMOD_FUNCTION float f32_min(float x, float y) { return is_nan(x) || x < y ? x : y; }
SCOREMOD_FUNCTION float f32_max(float x, float y) { return is_nan(x) || x > y ? x : y; }
SCOREMOD_FUNCTION float f32_sign(float x) { return is_nan(x) || x == 0.0f ? x : x > 0.0f ? 1.0f : -1.0f; }
SCOREMOD_FUNCTION float f32_relu(float x) { return is_nan(x) || x > 0.0f ? x : 0.0f; }
// x / y of a positive constant whose reciprocal is not subnormal: the quotient by the reciprocal, corrected by its
// remainder. Source: N. Brisebarre, J.-M. Muller, S. K. Raina, Accelerating Correctly Rounded Floating-Point Division
// when the Divisor Is Known in Advance, IEEE Trans. Computers 53(8), 2004. It rounds correctly, but subnormal quotients
// and dividends below 2^-102, whose remainder is subnormal, may be off by two units. The operator takes three times as
// many instructions and a branch. The remainder of an infinity is NaN.
SCOREMOD_FUNCTION float f32_divide_by(float x, float y, float reciprocal) {
  const float near = x * reciprocal, quotient = fmaf(-fmaf(y, near, -x), reciprocal, near);
  return is_nan(quotient) ? near : quotient;
}
// tanh by one exponential: 2^-21 at most from the true value, but near 0 not by so small a part of it. Five
// instructions in place of CUDA's fifteen, for scores of tensors of 16 bits and fewer.
SCOREMOD_FUNCTION float f32_tanh_by_exponential(float x) {
  return fmaf(-2.0f, f32_reciprocal_near(1.0f + f32_exp2_near(x * 0x1.715476p+1f)), 1.0f);
}
#ifdef __CUDACC_RTC__
SCOREMOD_FUNCTION float f32_tanh_short(float x) { return f32_tanh_by_exponential(x); }
#else
SCOREMOD_FUNCTION float f32_tanh_short(float x) { return tanhf(x); }
#endif
SCOREMOD_FUNCTION float f32_sigmoid(float x) {
  // One exponential, and a quotient as above, without a branch: a warp's elements have both signs.
  const float e = expf(-fabsf(x)), above = x >= 0.0f ? 1.0f : e, below = 1.0f + e;
  const float reciprocal = f32_reciprocal_near(below), near = above * reciprocal;
  return fmaf(fmaf(-below, near, above), reciprocal, near);
}
SCOREMOD_FUNCTION float f32_softplus(float x) {
  if (is_nan(x)) return x;
  return f32_max(x, 0.0f) + log1pf(expf(-fabsf(x)));
}
SCOREMOD_FUNCTION float f32_gated(float x, float gate) { return gate == 0.0f ? 0.0f : x * gate; }
SCOREMOD_FUNCTION float f32_gelu(float x) { return f32_gated(x, erfcf(-x / 0x1.6a09e6p+0f) / 2.0f); }
SCOREMOD_FUNCTION float f32_gelu_tanh(float x) {
  const float inner = sqrtf(2.0f / 0x1.921fb6p+1f) * (x + (float)0.044715 * x * x * x);
  return f32_gated(x, f32_sigmoid(2.0f * inner));
}
SCOREMOD_FUNCTION float f32_silu(float x) { return f32_gated(x, f32_sigmoid(x)); }
