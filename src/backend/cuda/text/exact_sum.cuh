// Sums that do not depend on the order of their terms: exact_sum.hpp.
#pragma once

#include "backend/cuda/text/program_prelude.cuh"

#ifdef __CUDACC_RTC__
SCOREMOD_FUNCTION unsigned bits_of_float(float x) { return __float_as_uint(x); }
// red.add and red.or: atomicAdd and atomicOr, whose results nothing reads.
SCOREMOD_FUNCTION void add_to(float* sums, long long entry, float value) { atomicAdd(sums + entry, value); }
SCOREMOD_FUNCTION void add_word(unsigned long long* word, unsigned long long value) { atomicAdd(word, value); }
SCOREMOD_FUNCTION void set_bits(unsigned long long* word, unsigned long long value) { atomicOr(word, value); }
#else
SCOREMOD_FUNCTION unsigned bits_of_float(float x) {
  unsigned bits;
  memcpy(&bits, &x, sizeof(bits));
  return bits;
}
SCOREMOD_FUNCTION void add_to(float* sums, long long entry, float value) { sums[entry] += value; }
SCOREMOD_FUNCTION void add_word(unsigned long long* word, unsigned long long value) { *word += value; }
SCOREMOD_FUNCTION void set_bits(unsigned long long* word, unsigned long long value) { *word |= value; }
#endif
SCOREMOD_FUNCTION float sum_at(const float* sums, long long entry) { return sums[entry]; }

enum { kDigits = 12, kDigitBits = 24, kSumWords = 13, kPlusInfinity = 1, kMinusInfinity = 2, kNotANumber = 4 };
SCOREMOD_FUNCTION void add_to(long long* sums, long long entry, float value) {
  unsigned long long* const words = (unsigned long long*)sums + entry * kSumWords;
  const unsigned bits = bits_of_float(value), exponent = (bits >> 23) & 255u;
  const bool negative = bits >> 31;
  if (exponent == 255u) {
    set_bits(words + kDigits, is_nan(value) ? kNotANumber : negative ? kMinusInfinity : kPlusInfinity);
    return;
  }
  const unsigned long long mantissa = (bits & 0x7fffffu) | (exponent != 0u ? 0x800000u : 0u);
  const unsigned shift = exponent > 1u ? exponent - 1u : 0u, digit = shift / kDigitBits;
  const unsigned long long wide = mantissa << (shift % kDigitBits);
  const unsigned long long low = wide & 0xffffffu, high = wide >> kDigitBits;
  if (low != 0) add_word(words + digit, negative ? 0 - low : low);
  if (high != 0) add_word(words + digit + 1, negative ? 0 - high : high);
}
SCOREMOD_FUNCTION float sum_at(const long long* sums, long long entry) {
  const long long* const words = sums + entry * kSumWords;
  const long long special = words[kDigits];
  const float infinity = float_of_bits(0x7f800000u);
  if ((special & kNotANumber) || (special & 3) == 3) return float_of_bits(0x7fc00000u);
  if (special) return special & kPlusInfinity ? infinity : -infinity;
  // Digits lie within half of their base, so the part below a double's 53 bits is less than half of its last bit.
  const long long base = 1LL << kDigitBits, half = base / 2;
  long long digits[kDigits], carry = 0;
  for (int i = 0; i < kDigits; ++i) {
    const long long all = words[i] + carry;
    digits[i] = ((all + half) & (base - 1)) - half;
    carry = (all - digits[i]) / base;
  }
  double value = ldexp((double)carry, kDigits * kDigitBits - 149);
  for (int i = kDigits - 1; i >= 0; --i) value += ldexp((double)digits[i], i * kDigitBits - 149);
  return (float)value;
}
