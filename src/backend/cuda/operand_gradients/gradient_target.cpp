#include "backend/cuda/operand_gradients/gradient_target.hpp"

#include "backend/cuda/text/exact_sum.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::cuda {
namespace {

GradientSum sum_of(const compiler::OperandReduction& reduction, const AttentionProblem& problem) {
  if (reduction.roots.empty()) return GradientSum::kZero;
  if (reduction.scattered) return GradientSum::kTable;
  if (!reduction.has(Axis::kQuery) || !reduction.has(Axis::kKey)) return GradientSum::kReduced;
  const bool once = reduction.extents[0] == problem.batch && reduction.extents[1] == problem.heads_q;
  return once ? GradientSum::kStored : GradientSum::kBlock;
}

}  // namespace

std::vector<GradientTarget> gradient_targets(const compiler::CompiledProblem& problem,
                                             std::span<const std::uint32_t> operands) {
  if (!problem.backward) fail_bug("the problem was compiled without a derivative");
  std::vector<GradientTarget> targets;
  for (const std::uint32_t operand : operands) {
    GradientTarget target{compiler::reduction_of(problem.backward->reductions, operand)};
    target.sum = sum_of(target, problem.problem);
    target.exact =
        problem.problem.deterministic && (target.sum == GradientSum::kReduced || target.sum == GradientSum::kTable);
    targets.push_back(std::move(target));
  }
  return targets;
}

std::int64_t GradientTarget::sum_bytes() const {
  return exact ? static_cast<std::int64_t>(kExactSumBytes) : static_cast<std::int64_t>(sizeof(float));
}

}  // namespace scoremod::backend::cuda
