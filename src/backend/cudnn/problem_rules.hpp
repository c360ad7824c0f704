#pragma once

#include <string>
#include <vector>

#include "scoremod/problem.hpp"

namespace scoremod::backend::cudnn {

/// Why cuDNN's fused attention cannot take a problem's sizes, dtype or strides on this architecture (90 for sm_90),
/// whatever its program; each says what would be taken. Empty when nothing speaks against it.
std::vector<std::string> problem_objections(const AttentionProblem& problem, int compute_capability);

}  // namespace scoremod::backend::cudnn
