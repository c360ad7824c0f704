#include <algorithm>

#include "backend/cuda/operand_gradients/gradient_blocks.hpp"
#include "backend/cuda/operand_gradients/gradient_source.hpp"
#include "backend/cuda/operand_gradients/gradient_workspace.hpp"
#include "backend/cuda/operand_gradients/operand_gradients.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::cuda {

OperandGradientCost OperandGradients::cost(const compiler::CompiledProblem& problem,
                                           std::span<const std::uint32_t> operands) {
  const AttentionProblem& p = problem.problem;
  const std::vector<GradientTarget> targets = gradient_targets(problem, operands);
  const GradientBlocks blocks = gradient_blocks(p, targets);
  OperandGradientCost cost;
  cost.workspace_bytes = GradientWorkspace(p, targets, blocks).bytes;
  std::int64_t stacks = 0;
  for (std::int64_t h = 0; h < p.heads_q; h += blocks.heads) {
    for_each_stack(p.heads_q / p.heads_kv, h, std::min(h + blocks.heads, p.heads_q),
                   [&](std::int64_t, std::int64_t) { ++stacks; });
  }
  for_each_block(problem, blocks, {}, [&](KeyRange, KeyRange, KeyRange needed) { cost.blocks += !needed.empty(); });
  // Rows' deltas of keys in several blocks take a walk of their own.
  const int walks = has_weighted_deltas(p) && !blocks.have_all_keys(p) ? 2 : 1;
  cost.products = 2 * walks * cost.blocks * p.batch * stacks;
  return cost;
}

std::string describe(const compiler::CompiledProblem& problem, std::span<const std::uint32_t> operands) {
  const OperandGradientCost cost = OperandGradients::cost(problem, operands);
  std::string names;
  for (const std::uint32_t operand : operands) {
    names += concat(names.empty() ? "'" : ", '", problem.problem.program.operands()[operand].name, "'");
  }
  return concat(operands.size() == 1 ? "gradient of " : "gradients of ", names,
                " by a pass of its own: ", cost.products, " products by cuBLAS over ", cost.blocks,
                " blocks, workspace ", (cost.workspace_bytes + (1 << 20) - 1) >> 20, " MiB");
}

}  // namespace scoremod::backend::cuda
