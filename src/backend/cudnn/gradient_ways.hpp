#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/cudnn/direction_plan.hpp"

namespace scoremod::backend::cudnn {

/// What makes the gradients of captured operands: cuDNN itself beside dq, dk and dv, or a pass of scoremod's own.
struct GradientWays {
  std::vector<std::uint32_t> operands;        ///< that have one, in ascending order
  std::optional<std::uint32_t> fused;         ///< the one of them that cuDNN writes
  std::shared_ptr<const DirectionPlan> plan;  ///< a whole backward that writes it; null where `fused` is empty
  std::vector<std::string> notes;             ///< what cuDNN writes, or why not

  /// Whether some call needs the pass: cuDNN's way is taken where its operand's gradient is the only one asked for,
  /// since a pass that runs anyway makes one more gradient for less.
  bool needs_pass() const { return !operands.empty() && !(fused && operands.size() == 1); }
  /// Whether `plan` makes all that a call asks for. `d_operands` has an entry for each operand, null where not wanted.
  bool is_fused(std::span<void* const> d_operands) const;
};

/// Builds and verifies the fused plan, where the problem has one and its workspace is within the limit. Throws
/// Error(kEnvironment) as plan_direction() does.
GradientWays gradient_ways(const compiler::CompiledProblem& problem);

}  // namespace scoremod::backend::cudnn
