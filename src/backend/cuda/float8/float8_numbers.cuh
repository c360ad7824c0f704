// FP8 numbers and the other dtypes of tensors, by their number in scoremod::DType: float8_conversion.cuh uses them.
#pragma once

#include "backend/cuda/text/program_prelude.cuh"

#ifdef __CUDACC_RTC__
SCOREMOD_FUNCTION unsigned bits_of_float(float x) { return __float_as_uint(x); }
#else
SCOREMOD_FUNCTION unsigned bits_of_float(float x) {
  unsigned bits;
  memcpy(&bits, &x, sizeof(bits));
  return bits;
}
#endif

constexpr int kFloat32 = 0, kFloat16 = 1, kBfloat16 = 2, kE4M3 = 5, kE5M2 = 6;

SCOREMOD_FUNCTION int bytes_of(int dtype) { return dtype == kFloat32 ? 4 : dtype <= kBfloat16 ? 2 : 1; }

SCOREMOD_FUNCTION float number_of_e4m3(unsigned code) {
  const unsigned sign = (code & 0x80u) << 24, magnitude = code & 0x7fu;
  if (magnitude == 0x7fu) return float_of_bits(sign | 0x7fc00000u);
  // 2^120 moves the exponent's bias from 7 to 127; exact for subnormal numbers too.
  return float_of_bits(sign | bits_of_float(float_of_bits(magnitude << 20) * 0x1p120f));
}
SCOREMOD_FUNCTION float number_of_f16(unsigned bits) {
  const unsigned sign = (bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return float_of_bits(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  return float_of_bits(sign | bits_of_float(float_of_bits(magnitude << 13) * 0x1p112f));
}
SCOREMOD_FUNCTION float number_of(int dtype, unsigned bits) {
  if (dtype == kE4M3) return number_of_e4m3(bits);
  if (dtype == kE5M2) return number_of_f16(bits << 8);
  if (dtype == kFloat16) return number_of_f16(bits);
  return float_of_bits(dtype == kBfloat16 ? bits << 16 : bits);
}

// Rounds to nearest, ties to even, in a format with these bits of mantissa and this bias. A magnitude that is not below
// `largest` becomes its code.
SCOREMOD_FUNCTION unsigned rounded_bits(float x, int mantissa_bits, int bias, float largest, unsigned largest_code) {
  const unsigned magnitude = bits_of_float(x) & 0x7fffffffu;
  if (float_of_bits(magnitude) >= largest) return largest_code;
  const int exponent = (int)(magnitude >> 23) - 127;
  unsigned significand = magnitude - ((unsigned)(127 - bias) << 23);
  int shift = 23 - mantissa_bits;
  if (exponent < 1 - bias) {
    significand = (magnitude & 0x7fffffu) | 0x800000u;
    shift += 1 - bias - exponent;
    if (shift > 24) return 0u;
  }
  return (significand + ((1u << (shift - 1)) - 1u) + ((significand >> shift) & 1u)) >> shift;
}
// The bits of a number in a tensor of this dtype; FP8 saturates.
SCOREMOD_FUNCTION unsigned stored_bits(int dtype, float x) {
  const unsigned bits = bits_of_float(x), sign = bits >> 31;
  if (dtype == kFloat32) return bits;
  if (dtype == kBfloat16) return (is_nan(x) ? bits | 0x400000u : bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  // 65520 is the first number whose nearest is an infinity.
  if (dtype == kFloat16) return sign << 15 | (is_nan(x) ? 0x7e00u : rounded_bits(x, 10, 15, 65520.0f, 0x7c00u));
  if (is_nan(x)) return sign << 7 | 0x7fu;
  return sign << 7 | (dtype == kE4M3 ? rounded_bits(x, 3, 7, 448.0f, 0x7eu) : rounded_bits(x, 2, 15, 57344.0f, 0x7bu));
}
