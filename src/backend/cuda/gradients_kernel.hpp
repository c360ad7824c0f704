#pragma once

#include <span>

#include "backend/cuda/gradient_source.hpp"

namespace scoremod::backend::cuda {

/// The kernel "gradients" of a GradientSource, without what comes before it.
GradientSource gradients_kernel(const compiler::CompiledProblem& problem, std::span<const GradientTarget> targets);

}  // namespace scoremod::backend::cuda
