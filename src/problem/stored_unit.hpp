#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "problem/tensor_view.hpp"

namespace scoremod::problem {

/// The scale of a tensor: value = stored * unit. It is 1 except for FP8 tensors, whose scales are runtime arguments,
/// and for those with block scales, which it leaves to BlockScales.
class StoredUnit {
 public:
  /// The problem has its implied operands.
  StoredUnit(const AttentionProblem& problem, TensorRole role);

  /// The unit of a head in a call on the host, with these operands in the order of the declarations. Heads of k and v
  /// are KV heads, which may have their own.
  double of(std::span<const void* const> operands, std::int64_t head) const;
  /// The factor of values before they are stored, which all heads share: 1 / of().
  double scale(std::span<const void* const> operands) const;
  /// Whether heads have their own.
  bool varies_with_head() const { return head_step_ != 0; }

 private:
  double bound(std::span<const void* const> operands, std::int64_t head) const;

  std::optional<std::uint32_t> operand_;  ///< none where it is 1
  std::int64_t head_step_ = 0;            ///< in elements; 0 where heads share it
  bool is_scale_ = false;                 ///< the operand is the factor before storing
};

}  // namespace scoremod::problem
