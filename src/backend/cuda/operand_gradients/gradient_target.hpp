#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compiler/compiled_problem.hpp"

namespace scoremod::backend::cuda {

/// How the gradient of one operand is summed.
enum class GradientSum : std::uint8_t {
  kZero,     ///< nothing contributes: the value does not depend on the operand
  kStored,   ///< each entry gets one contribution, which the kernel writes where it belongs
  kBlock,    ///< varies along queries and keys, and is summed over batches or heads: sums of one block at a time
  kReduced,  ///< varies along queries or keys or neither: sums of all entries, to which CTAs add
  kTable,    ///< scattered: sums of all entries
};

/// The gradient of one operand: its sums are dense in the order b, h, q, kv and have the reduction's extents.
struct GradientTarget : compiler::OperandReduction {
  GradientSum sum = GradientSum::kZero;
  /// The sums are exact ones (exact_sum.hpp), whose result does not depend on the order in which CTAs add; else of
  /// float32. Used for a deterministic problem if several CTAs of one launch add to a sum.
  bool exact = false;

  std::int64_t sum_bytes() const;
};

/// One for each of `operands`, which have a gradient, of a problem with backward.
std::vector<GradientTarget> gradient_targets(const compiler::CompiledProblem& problem,
                                             std::span<const std::uint32_t> operands);

}  // namespace scoremod::backend::cuda
