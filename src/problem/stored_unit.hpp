#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "problem/tensor_view.hpp"

namespace scoremod::problem {

/// The scale of a tensor: value = stored * unit. It is 1 except for FP8 tensors, whose scales are runtime arguments.
class StoredUnit {
 public:
  /// The problem has its implied operands.
  StoredUnit(const AttentionProblem& problem, TensorRole role);

  /// The unit in a call on the host, with these operands in the order of the declarations.
  double of(std::span<const void* const> operands) const;
  /// The factor of values before they are stored: 1 / of().
  double scale(std::span<const void* const> operands) const;

 private:
  double bound(std::span<const void* const> operands) const;

  std::optional<std::uint32_t> operand_;  ///< none where it is 1
  bool is_scale_ = false;                 ///< the operand is the factor before storing
};

}  // namespace scoremod::problem
