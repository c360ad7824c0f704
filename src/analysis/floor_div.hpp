#pragma once

#include <cstdint>

namespace scoremod::analysis {

/// The largest integer not above x / y; y is not 0, and x not the least number where y is -1.
constexpr std::int64_t floor_div(std::int64_t x, std::int64_t y) {
  const std::int64_t quotient = x / y;
  return quotient - ((x % y != 0 && (x < 0) != (y < 0)) ? 1 : 0);
}

}  // namespace scoremod::analysis
