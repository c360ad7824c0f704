#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "problem/tensor_view.hpp"

namespace scoremod::problem {

/// What a tensor's memory holds, and the numbers that it stands for: each is this unit times what is stored. 1, but for
/// tensors of eight bits, whose factors calls bind as operands.
class StoredUnit {
 public:
  /// The problem has its implied operands.
  StoredUnit(const AttentionProblem& problem, TensorRole role);

  /// Of a call on the host, with these operands in the order of the declarations.
  double of(std::span<const void* const> operands) const;
  /// What numbers are multiplied by before they are stored: 1 / of().
  double scale(std::span<const void* const> operands) const;

 private:
  double bound(std::span<const void* const> operands) const;

  std::optional<std::uint32_t> operand_;  ///< none where it is 1
  bool is_scale_ = false;                 ///< the operand is what numbers are multiplied by
};

}  // namespace scoremod::problem
