#pragma once

#include <optional>
#include <vector>

#include "scoremod/problem.hpp"

#include "backend/candidate.hpp"

namespace scoremod::backend::cudnn {

/// What speaks against a direction of a problem before any pattern is looked at: sizes, dtype and strides that cuDNN's
/// fused attention cannot take, and gradients that it cannot make the same bits each time. Every reason is given.
/// Without a compute capability (90 for sm_90) what holds on each architecture.
std::vector<UnsupportedReason> problem_objections(const AttentionProblem& problem, Direction direction,
                                                  std::optional<int> compute_capability);

}  // namespace scoremod::backend::cudnn
