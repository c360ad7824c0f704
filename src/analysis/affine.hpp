#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "scoremod/program.hpp"

namespace scoremod::analysis {

/// Global indices first..last, both included.
struct IndexRange {
  std::int64_t first = 0;
  std::int64_t last = 0;
};

/// Ranges of b, h, q_idx and kv_idx, in the order of Axis.
using IndexBox = std::array<IndexRange, kAxisCount>;

/// factor[b] * b + factor[h] * h + factor[q] * q_idx + factor[kv] * kv_idx + constant, in exact arithmetic.
struct AffineForm {
  std::array<std::int64_t, kAxisCount> factor{};
  std::int64_t constant = 0;

  bool is_constant() const { return factor == std::array<std::int64_t, kAxisCount>{}; }
  bool operator==(const AffineForm&) const = default;
};

/// Arithmetic on forms; empty where a coefficient grows so large that a form's range might overflow 64 bits.
std::optional<AffineForm> sum(const AffineForm& x, const AffineForm& y);
std::optional<AffineForm> difference(const AffineForm& x, const AffineForm& y);
std::optional<AffineForm> scaled(const AffineForm& x, std::int64_t factor);

/// The smallest and largest value over a box of valid indices.
IndexRange range_over(const AffineForm& form, const IndexBox& box);

/// True when every integer in the range is a value of the type without wrapping (i32) or rounding (f32: magnitude at
/// most 2^24).
bool is_exact(const IndexRange& range, Type type);

/// The affine form of each node's value, valid if neither it nor its parts wrap or round (see is_exact); empty if there
/// is none. Covers i32 and integer-valued f32.
std::vector<std::optional<AffineForm>> affine_forms(const Program& program);

}  // namespace scoremod::analysis
