#include <bit>
#include <cmath>
#include <limits>

#include "scoremod/dsl.hpp"

#include "base/fail.hpp"

namespace scoremod::dsl {

Handle f32_literal(double value) {
  const auto rounded = static_cast<float>(value);
  if (std::isfinite(value) && !std::isfinite(rounded)) {
    fail_argument("literal ", value, ": expected a value within the range of float32; write INFINITY for infinity");
  }
  return {0, std::bit_cast<std::uint32_t>(rounded), Type::kF32};
}

Handle f32_literal(std::int64_t value) {
  // Each int64 within 2^24 is a float32; beyond, some are, and the comparison is exact because double holds both.
  constexpr std::int64_t kExactInDouble = std::int64_t{1} << 53;
  const auto rounded = static_cast<float>(value);
  const bool exact =
      value >= -kExactInDouble && value <= kExactInDouble && static_cast<double>(rounded) == static_cast<double>(value);
  if (!exact) {
    fail_argument("integer literal ", value, " is used as a float32, which can't hold it exactly; write it as a float");
  }
  return {0, std::bit_cast<std::uint32_t>(rounded), Type::kF32};
}

Handle i32_literal(std::int64_t value) {
  if (!std::in_range<std::int32_t>(value)) {
    fail_argument("integer literal ", value, ": expected a value within the range of int32; use a smaller one");
  }
  return {0, static_cast<std::uint32_t>(static_cast<std::int32_t>(value)), Type::kI32};
}

Handle bool_literal(bool value) { return {0, value ? 1u : 0u, Type::kBool}; }

void refuse_literal(std::uint64_t value) {
  fail_argument("integer literal ", value, ": expected a value within the range of int32; use a smaller one");
}

}  // namespace scoremod::dsl
