#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/cuda/operand_gradients/gradient_blocks.hpp"
#include "backend/cuda/operand_gradients/gradient_target.hpp"

namespace scoremod::backend::cuda {

/// The offsets of the parts of OperandGradients' workspace, in bytes from its first aligned address.
struct GradientWorkspace {
  static constexpr std::size_t kAlignment = 256;

  std::size_t deltas = 0, weights = 0, scores = 0, products = 0;
  std::vector<std::size_t> sums;  ///< one for each target
  std::size_t bytes = 0;          ///< with room to align; cuBLAS's part comes first

  GradientWorkspace(const AttentionProblem& problem, std::span<const GradientTarget> targets,
                    const GradientBlocks& blocks);

 private:
  std::size_t take(std::int64_t count, std::int64_t size);
};

}  // namespace scoremod::backend::cuda
