#pragma once

#include <string>
#include <vector>

#include "scoremod/problem.hpp"

namespace scoremod::backend::cudnn {

/// What speaks against a problem on this architecture (90 for sm_90) before any form is looked at: sizes, dtype and
/// strides that cuDNN's fused attention cannot take, gradients that it cannot make the same bits each time, and a
/// workspace above the limit. Each says what would be taken. Empty when nothing speaks against it.
std::vector<std::string> problem_objections(const AttentionProblem& problem, int compute_capability);

/// What speaks against the backward alone, on every architecture: the forward of such a problem may be cuDNN's.
std::vector<std::string> backward_objections(const AttentionProblem& problem);

}  // namespace scoremod::backend::cudnn
