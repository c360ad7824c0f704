#pragma once

#include <bit>
#include <cstdint>

#include "base/float16.hpp"
#include "base/rounded_code.hpp"

namespace scoremod {

/// The largest numbers of the two formats.
inline constexpr float kMaxE4M3 = 448, kMaxE5M2 = 57344;

namespace float8_detail {

/// The format with this many exponent bits, rounded from double once: to nearest, ties to even. Larger numbers saturate
/// to the largest, whose code is given; NaN becomes the code of all ones.
template <int kExponentBits>
constexpr std::uint8_t encode(double value, double largest, std::uint8_t largest_code) {
  constexpr int kMantissaBits = 7 - kExponentBits;
  constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  const auto bits = std::bit_cast<std::uint64_t>(value);
  const auto sign = static_cast<std::uint8_t>(bits >> 63 << 7);
  const std::uint64_t magnitude = bits & ~(std::uint64_t{1} << 63);
  if (magnitude > std::uint64_t{0x7ff} << 52) return sign | 0x7f;
  if (std::bit_cast<double>(magnitude) >= largest) return sign | largest_code;
  return sign | static_cast<std::uint8_t>(rounded_code<kMantissaBits, kBias>(magnitude));
}

}  // namespace float8_detail

/// The nearest E4M3 within -448 and 448; an infinity becomes one of these two.
constexpr std::uint8_t encode_e4m3(double value) { return float8_detail::encode<4>(value, double{kMaxE4M3}, 0x7e); }

/// The nearest E5M2 within -57344 and 57344; an infinity becomes one of these two.
constexpr std::uint8_t encode_e5m2(double value) { return float8_detail::encode<5>(value, double{kMaxE5M2}, 0x7b); }

/// Exact.
constexpr float decode_e4m3(std::uint8_t code) {
  const std::uint32_t sign = std::uint32_t{code & 0x80u} << 24;
  const std::uint32_t magnitude = code & 0x7fu;
  if (magnitude == 0x7fu) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (magnitude >= 0x08u) return std::bit_cast<float>(sign | ((magnitude << 20) + ((127u - 7u) << 23)));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-9f;
  return sign != 0 ? -subnormal : subnormal;
}

/// Exact.
constexpr float decode_e5m2(std::uint8_t code) { return decode_f16(static_cast<std::uint16_t>(code << 8)); }

}  // namespace scoremod
