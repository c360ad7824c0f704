#include "backend/cuda/operand_gradients/gradient_workspace.hpp"

#include "backend/cuda/operand_gradients/gradient_source.hpp"
#include "backend/cuda/operand_gradients/matrix_products.hpp"
#include "base/byte_count.hpp"

namespace scoremod::backend::cuda {

GradientWorkspace::GradientWorkspace(const AttentionProblem& problem, std::span<const GradientTarget> targets,
                                     const GradientBlocks& blocks)
    : bytes(kBlasWorkspaceBytes) {
  const std::int64_t rows = problem.batch * problem.heads_q * problem.seq_q;
  deltas = take(rows, sizeof(float));
  weights = take(has_weighted_deltas(problem) ? rows : 0, sizeof(float));
  scores = take(blocks.scores(), sizeof(float));
  products = take(blocks.scores(), sizeof(float));
  for (const GradientTarget& target : targets) sums.push_back(take(blocks.sums(target), target.sum_bytes()));
  bytes = add_bytes(bytes, kAlignment);  // callers align to less
}

std::size_t GradientWorkspace::take(std::int64_t count, std::int64_t size) {
  const std::size_t first = bytes;
  const std::size_t part = multiply_bytes(static_cast<std::size_t>(count), static_cast<std::size_t>(size));
  bytes = add_bytes(bytes, align_bytes(part, kAlignment));
  return first;
}

}  // namespace scoremod::backend::cuda
