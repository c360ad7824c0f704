#include "backend/cuda/gradient_target.hpp"

#include "backend/cuda/exact_sum.hpp"
#include "base/fail.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend::cuda {
namespace {

GradientSum sum_of(const compiler::CompiledProblem& problem, const GradientTarget& target) {
  if (!problem.derivative) fail_bug("the problem was compiled without a derivative");
  bool read = false;
  for (const Root& root : problem.derivative->roots())
    read |= root.kind == RootKind::kOperandAdjoint && root.operand == target.operand;
  if (!read) return GradientSum::kZero;
  if (problem.problem.program.operands()[target.operand].is_table()) return GradientSum::kTable;
  if (!target.has(Axis::kQuery) || !target.has(Axis::kKey)) return GradientSum::kReduced;
  const bool once = target.extents[0] == problem.problem.batch && target.extents[1] == problem.problem.heads_q;
  return once ? GradientSum::kStored : GradientSum::kBlock;
}

}  // namespace

std::vector<GradientTarget> gradient_targets(const compiler::CompiledProblem& problem,
                                             std::span<const std::uint32_t> operands) {
  const AttentionProblem& p = problem.problem;
  const std::array<std::int64_t, kAxisCount> sizes{p.batch, p.heads_q, p.seq_q, p.seq_kv};
  std::vector<GradientTarget> targets;
  for (const std::uint32_t operand : operands) {
    const OperandDecl& decl = p.program.operands()[operand];
    const OperandSpec& spec = problem::spec_of(p, operand);
    GradientTarget target;
    target.operand = operand;
    target.axes = decl.axes;
    for (std::size_t d = 0; d < kAxisCount; ++d) {
      if (decl.is_table())
        target.extents[d] = d < spec.shape.size() ? spec.shape[d] : 1;
      else
        target.extents[d] = decl.axes[d] ? sizes[d] : 1;
    }
    target.sum = sum_of(problem, target);
    target.exact = p.deterministic && (target.sum == GradientSum::kReduced || target.sum == GradientSum::kTable);
    targets.push_back(target);
  }
  return targets;
}

std::int64_t GradientTarget::sum_bytes() const {
  return exact ? static_cast<std::int64_t>(kExactSumBytes) : static_cast<std::int64_t>(sizeof(float));
}

}  // namespace scoremod::backend::cuda
