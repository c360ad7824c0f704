#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace scoremod::backend::cpu {

/// The largest magnitude of numbers that several threads see. Bits of magnitudes have their order, and those of NaN
/// are the largest.
class LargestMagnitude {
 public:
  float value() const { return std::bit_cast<float>(bits_.load()); }

  void raise(std::uint32_t bits) {
    std::uint32_t largest = bits_.load();
    while (largest < bits && !bits_.compare_exchange_weak(largest, bits)) {
    }
  }

 private:
  std::atomic<std::uint32_t> bits_{0};
};

/// The largest magnitude of the numbers that one thread sees.
class OwnLargestMagnitude {
 public:
  std::uint32_t bits() const { return bits_; }

  void add(float number) { bits_ = std::max(bits_, std::bit_cast<std::uint32_t>(std::abs(number))); }
  /// Adds scale * row[i * step] for each i.
  void add(const float* row, float scale, std::size_t count, std::int64_t step = 1) {
    for (std::size_t i = 0; i < count; ++i) add(scale * row[static_cast<std::int64_t>(i) * step]);
  }

 private:
  std::uint32_t bits_ = 0;
};

}  // namespace scoremod::backend::cpu
