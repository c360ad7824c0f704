#pragma once

#include <cstddef>

#include "scoremod/problem.hpp"

namespace scoremod::backend::cudnn {

/// What cuDNN's plan of a deterministic backward needs of device memory, in bytes, known before anything is built: at
/// most 512 bytes less than what the plan says (docs/reference/plans.md has the formula and what it was held to).
/// `compute_capability` is 90 for sm_90.
std::size_t predicted_deterministic_workspace(const AttentionProblem& problem, int compute_capability);

}  // namespace scoremod::backend::cudnn
