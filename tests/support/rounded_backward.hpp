#pragma once

#include <cstddef>
#include <span>

#include "backend/backend.hpp"
#include "backend/plan.hpp"
#include "compiler/compiled_problem.hpp"

namespace scoremod::test {

/// Roundings by which the kernels of one backend differ from another's; all are right.
struct KernelRounding {
  /// A row's delta is the mean of its weights' gradients in float32 in place of the rounded o's; not beside a sink.
  bool delta_of_weights = false;
  /// The gradient of a score is rounded for its products before the scale is multiplied with it, not after.
  bool rounded_unscaled = false;
  /// Sums of products are cut off after each step of 16, as matrix units do it, in place of being rounded.
  bool cut_off = false;
  /// In magnitude. Beyond, weights come from the row's maximum and their sum; not beside a sink.
  float largest_read_lse = backend::kMaxReadLse;
};

/// Something that a wrong kernel does.
enum class KernelFault {
  kNone,
  kNoDeltaOfOneKey,     ///< the delta is left out in rows that keep one key
  kHalfADeltaOfOneKey,  ///< it is half as large there
};

/// A backward in float32 with the roundings of GPU kernels, on the host. Products are in steps of 16 along the head
/// dims, and weights are base-2 exponentials from the LSE. Deltas are summed by lanes of 32 from the given o, and
/// weights and gradients of scores are rounded to the dtype for MMA. It is independent of the plain evaluation that
/// trials take their tolerance from. Not for FP8 problems.
class RoundedBackward final : public backend::BackwardPlan {
 public:
  RoundedBackward(const compiler::CompiledProblem& compiled, const KernelRounding& rounding,
                  KernelFault fault = KernelFault::kNone)
      : compiled_(compiled), rounding_(rounding), fault_(fault) {}
  std::size_t workspace_bytes() const override { return 0; }
  void execute(const backend::BackwardTensors& tensors, const backend::CallParameters& parameters,
               std::span<std::byte> workspace) const override;

 private:
  const compiler::CompiledProblem compiled_;
  const KernelRounding rounding_;
  const KernelFault fault_;
};

}  // namespace scoremod::test
