#pragma once

#include <cstddef>

#include "scoremod/problem.hpp"

namespace scoremod::backend::cudnn {

/// The bytes of device memory that cuDNN's plan of a deterministic backward needs, known before anything is built. The
/// plan says at most 512 bytes more (docs/reference/plans.md has the formula and its tests). `compute_capability` is 90
/// for sm_90.
std::size_t predicted_deterministic_workspace(const AttentionProblem& problem, int compute_capability);

}  // namespace scoremod::backend::cudnn
