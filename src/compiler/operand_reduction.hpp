#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "scoremod/problem.hpp"

namespace scoremod::compiler {

/// How the contributions of single elements (b, h, q_idx, kv_idx) make the gradient of one operand: they are summed
/// over the elements that read the same entry.
struct OperandReduction {
  std::uint32_t operand = 0;
  /// A table: each contribution goes to the entry at its root's indices. Else to the entry of the element itself.
  bool scattered = false;
  /// The axes of the score that the entries vary along; summed over the others. None for a table.
  std::array<bool, kAxisCount> axes{};
  /// The gradient's extents in the order b, h, q, kv, 1 along the axes that it is summed over; a table's own, then 1.
  std::array<std::int64_t, kAxisCount> extents{1, 1, 1, 1};
  /// Numbers of the backward program's roots that contribute. None: nothing does, and the gradient is zero.
  std::vector<std::size_t> roots;
  /// The only contribution is d loss / d value itself: the value is the operand and terms without it.
  bool is_upstream = false;

  bool has(Axis axis) const { return axes[static_cast<std::size_t>(axis)]; }
  std::int64_t entries() const { return extents[0] * extents[1] * extents[2] * extents[3]; }
  bool operator==(const OperandReduction&) const = default;
};

/// The reductions of a problem whose derivative is given, one for each operand that has a gradient, in ascending order.
std::vector<OperandReduction> operand_reductions(const AttentionProblem& problem, const Program& derivative);

/// That of one operand. Every operand with a gradient has one.
const OperandReduction& reduction_of(std::span<const OperandReduction> reductions, std::uint32_t operand);

}  // namespace scoremod::compiler
