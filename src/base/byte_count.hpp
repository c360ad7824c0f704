#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace scoremod {

/// Numbers of bytes that do not wrap: larger ones are kMaxBytes, which no memory has. Sizes of a valid problem are up
/// to 2^30 each, so that products of four leave 64 bits.
inline constexpr std::size_t kMaxBytes = PTRDIFF_MAX;

inline std::size_t add_bytes(std::size_t x, std::size_t y) {
  return std::min(x, kMaxBytes) + std::min(y, kMaxBytes) < kMaxBytes ? x + y : kMaxBytes;
}

inline std::size_t multiply_bytes(std::size_t x, std::size_t y) {
  std::size_t product = 0;
  return __builtin_mul_overflow(x, y, &product) ? kMaxBytes : std::min(product, kMaxBytes);
}

/// The next multiple of `alignment`, a power of two.
inline std::size_t align_bytes(std::size_t bytes, std::size_t alignment) {
  return bytes > kMaxBytes - alignment ? kMaxBytes : (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace scoremod
