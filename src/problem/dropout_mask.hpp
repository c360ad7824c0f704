#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#include "base/philox.hpp"

namespace scoremod::problem {

/// The dropout mask of a call. It depends only on the seed, the offset and an element's global indices, so every order
/// of computation gives the same mask. docs/reference/problem.md specifies it.
///
/// Four neighbouring keys share one evaluation of Philox, whose counter holds (kv / 4, q, h, b). Its key comes from the
/// seed and the offset by another evaluation, so no two calls share counters.
class DropoutMask {
 public:
  /// The words of Philox's key.
  using Key = std::array<std::uint32_t, 2>;

  /// probability in [0, 1), of being dropped; to the nearest multiple of 2^-32.
  DropoutMask(float probability, Key key)
      : threshold_(static_cast<std::uint32_t>(std::llround(static_cast<double>(probability) * 0x1p32))),
        factor_(1 / (1 - static_cast<double>(probability))),
        key_(key) {}
  DropoutMask(float probability, std::uint64_t seed, std::uint64_t offset)
      : DropoutMask(probability, key_of(seed, offset)) {}

  /// For others that evaluate the same function: the key of Philox. A weight is dropped if its 32 random bits are below
  /// the threshold.
  const Key& key() const { return key_; }
  std::uint32_t threshold() const { return threshold_; }
  /// The factor of the weights that are kept, so that sums are unchanged on average.
  double factor() const { return factor_; }

  /// Whether an element is kept, by its global indices.
  bool keeps(std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t kv) const {
    return words(b, h, q, kv)[static_cast<std::size_t>(kv % 4)] >= threshold_;
  }

  /// Sets weights[i], of the key at first + i, to zero where it is dropped.
  void drop(std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t first, std::size_t count,
            float* weights) const {
    std::array<std::uint32_t, 4> group{};
    for (std::size_t i = 0; i < count; ++i) {
      const std::int64_t kv = first + static_cast<std::int64_t>(i);
      if (i == 0 || kv % 4 == 0) group = words(b, h, q, kv);
      if (group[static_cast<std::size_t>(kv % 4)] < threshold_) weights[i] = 0;
    }
  }

 private:
  static std::uint32_t low(std::uint64_t x) { return static_cast<std::uint32_t>(x); }
  static std::uint32_t high(std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); }
  static Key key_of(std::uint64_t seed, std::uint64_t offset) {
    const std::array<std::uint32_t, 4> words = philox({low(offset), high(offset), 0, 0}, {low(seed), high(seed)});
    return {words[0], words[1]};
  }

  std::array<std::uint32_t, 4> words(std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t kv) const {
    return philox({static_cast<std::uint32_t>(kv / 4), static_cast<std::uint32_t>(q), static_cast<std::uint32_t>(h),
                   static_cast<std::uint32_t>(b)},
                  key_);
  }

  std::uint32_t threshold_;  ///< of 32 random bits: smaller values are dropped
  double factor_;
  Key key_;
};

}  // namespace scoremod::problem
