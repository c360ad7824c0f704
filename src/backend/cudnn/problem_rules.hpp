#pragma once

#include <optional>
#include <vector>

#include "scoremod/problem.hpp"

#include "backend/candidate.hpp"

namespace scoremod::backend::cudnn {

/// The reasons against a direction of a problem before any pattern is looked at. They are sizes, dtypes and strides
/// that cuDNN's fused attention cannot take, and gradients that cannot be deterministic. Every reason is given. Without
/// a compute capability (90 for sm_90), the reasons are those of every architecture.
std::vector<UnsupportedReason> problem_objections(const AttentionProblem& problem, Direction direction,
                                                  std::optional<int> compute_capability);

}  // namespace scoremod::backend::cudnn
