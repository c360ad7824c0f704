#pragma once

#include "scoremod/problem.hpp"

namespace scoremod::problem {

/// Whether the program reads the scale.
bool reads_scale(const Program& program);

/// The problem with its scale as a constant where its program reads it: no backend has code for that.
AttentionProblem with_scale_as_constant(AttentionProblem problem);

}  // namespace scoremod::problem
