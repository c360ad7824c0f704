#pragma once

#include <bit>
#include <cstdint>

#include "base/rounded_code.hpp"

namespace scoremod {
namespace float16_detail {

/// The 16-bit binary format with this many exponent bits, rounded from double once: to nearest, ties to even. Overflow
/// gives infinity, NaN stays a quiet NaN with its sign and the upper bits of its payload.
template <int kExponentBits>
constexpr std::uint16_t encode(double value) {
  constexpr int kMantissaBits = 15 - kExponentBits;
  constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  constexpr int kShift = 52 - kMantissaBits;
  constexpr std::uint64_t kInfinity = std::uint64_t{0x7ff} << 52;
  constexpr std::uint16_t kInfinity16 = ((1 << kExponentBits) - 1) << kMantissaBits;

  const auto bits = std::bit_cast<std::uint64_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 63 << 15);
  const std::uint64_t magnitude = bits & ~(std::uint64_t{1} << 63);
  if (magnitude > kInfinity) {
    constexpr std::uint16_t kQuiet = 1 << (kMantissaBits - 1);
    const auto payload = static_cast<std::uint16_t>((magnitude >> kShift) & ((1 << kMantissaBits) - 1));
    return sign | kInfinity16 | kQuiet | payload;
  }
  // A number that rounds up beyond the largest carries into infinity's code; from 2^(kBias + 1) on, there is none.
  if (magnitude >= std::uint64_t{1023 + kBias + 1} << 52) return sign | kInfinity16;
  return sign | static_cast<std::uint16_t>(rounded_code<kMantissaBits, kBias>(magnitude));
}

}  // namespace float16_detail

/// The bits of the nearest IEEE 754 binary16. A float argument converts exactly to double, so both are rounded once.
constexpr std::uint16_t encode_f16(double value) { return float16_detail::encode<5>(value); }

/// The bits of the nearest bfloat16: the upper half of a float32.
constexpr std::uint16_t encode_bf16(double value) { return float16_detail::encode<8>(value); }

/// Exact.
constexpr float decode_bf16(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

/// Exact.
constexpr float decode_f16(std::uint16_t bits) {
  const std::uint32_t sign = std::uint32_t{bits & 0x8000u} << 16;
  const std::uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  if (magnitude >= 0x0400u) return std::bit_cast<float>(sign | ((magnitude << 13) + ((127u - 15u) << 23)));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
  return sign != 0 ? -subnormal : subnormal;
}

}  // namespace scoremod
