#pragma once

#include <cstdint>

namespace scoremod {

/// The code, without its sign, of the number nearest to a double in a format with this many mantissa bits and this
/// exponent bias. It is rounded once, ties to even. `magnitude` is the double's bits without the sign; it must not be
/// NaN. A number beyond the largest carries into the next code, which the caller must handle.
template <int kMantissaBits, int kBias>
constexpr std::uint64_t rounded_code(std::uint64_t magnitude) {
  const int exponent = static_cast<int>(magnitude >> 52) - 1023;
  std::uint64_t significand = 0;
  int shift = 52 - kMantissaBits;
  if (exponent >= 1 - kBias) {
    // The exponent stays in place above the mantissa: a carry out of the mantissa then counts it up.
    significand = magnitude - (std::uint64_t{1023 - kBias} << 52);
  } else {
    significand = (magnitude & ((std::uint64_t{1} << 52) - 1)) | (std::uint64_t{1} << 52);
    shift += 1 - kBias - exponent;
    if (shift > 53) return 0;  // below half of the smallest subnormal
  }
  const std::uint64_t odd = (significand >> shift) & 1;
  const std::uint64_t half_less_one = (std::uint64_t{1} << (shift - 1)) - 1;
  return (significand + half_less_one + odd) >> shift;
}

}  // namespace scoremod
