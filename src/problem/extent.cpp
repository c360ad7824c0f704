#include "problem/extent.hpp"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

namespace scoremod::problem {

std::optional<std::size_t> extent_bytes(std::span<const std::int64_t> sizes, std::span<const std::int64_t> strides,
                                        std::size_t element_bytes) {
  std::int64_t last = 0;   // offset of the last element
  std::int64_t count = 1;  // number of elements
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    std::int64_t span = 0;
    if (__builtin_mul_overflow(sizes[i] - 1, strides[i], &span)) return std::nullopt;
    if (__builtin_add_overflow(last, span, &last)) return std::nullopt;
    if (__builtin_mul_overflow(count, sizes[i], &count)) return std::nullopt;
  }
  constexpr std::int64_t kMax = std::numeric_limits<std::ptrdiff_t>::max();
  if (count > kMax / 4) return std::nullopt;
  if (last >= kMax / static_cast<std::int64_t>(element_bytes)) return std::nullopt;
  return static_cast<std::size_t>(last + 1) * element_bytes;
}

bool dimensions_nest(std::span<const std::int64_t> sizes, std::span<const std::int64_t> strides, bool may_broadcast) {
  std::vector<std::pair<std::int64_t, std::int64_t>> by_stride;  // stride, size
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] > 1 && !(may_broadcast && strides[i] == 0)) by_stride.emplace_back(strides[i], sizes[i]);
  }
  std::sort(by_stride.begin(), by_stride.end());
  std::int64_t inner = 0;  // offset of the last element of the dimensions seen so far
  for (const auto& [stride, size] : by_stride) {
    if (stride <= inner) return false;
    inner += (size - 1) * stride;
  }
  return true;
}

}  // namespace scoremod::problem
