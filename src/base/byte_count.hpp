#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace scoremod {

/// Numbers of bytes that do not wrap: what exceeds kMostBytes is kMostBytes, which no memory has. Sizes of a valid
/// problem are up to 2^30 each, so that products of four leave 64 bits.
inline constexpr std::size_t kMostBytes = PTRDIFF_MAX;

inline std::size_t add_bytes(std::size_t x, std::size_t y) {
  return std::min(x, kMostBytes) + std::min(y, kMostBytes) < kMostBytes ? x + y : kMostBytes;
}

inline std::size_t multiply_bytes(std::size_t x, std::size_t y) {
  std::size_t product = 0;
  return __builtin_mul_overflow(x, y, &product) ? kMostBytes : std::min(product, kMostBytes);
}

/// The next multiple of `alignment`, a power of two.
inline std::size_t align_bytes(std::size_t bytes, std::size_t alignment) {
  return bytes > kMostBytes - alignment ? kMostBytes : (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace scoremod
