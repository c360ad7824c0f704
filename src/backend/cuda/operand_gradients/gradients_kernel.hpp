#pragma once

#include <span>
#include <vector>

#include "backend/cuda/operand_gradients/gradient_source.hpp"

namespace scoremod::backend::cuda {

/// Whether each target is a table whose sums CTAs make in shared memory first.
std::vector<bool> shared_tables(std::span<const GradientTarget> targets);

/// The kernel "gradients" of a GradientSource, without the text before it.
GradientSource gradients_kernel(const compiler::CompiledProblem& problem, std::span<const GradientTarget> targets);

}  // namespace scoremod::backend::cuda
