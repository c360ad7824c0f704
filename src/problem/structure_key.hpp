#pragma once

#include "scoremod/problem.hpp"

#include "base/bytes.hpp"

namespace scoremod::problem {

/// Canonical bytes that determine the compiler's work on a problem and the text of its kernels. They are equal for
/// problems that differ in sizes, strides and, unless the program reads it, the scale.
Bytes structure_key(const AttentionProblem& problem);

}  // namespace scoremod::problem
