#pragma once

#include "scoremod/problem.hpp"

#include "base/bytes.hpp"

namespace scoremod::problem {

/// Canonical bytes that determine the compiler's work on a problem and the text of its kernels. They are equal for
/// problems that differ in sizes, strides and, unless the program reads it, the scale.
Bytes structure_key(const AttentionProblem& problem);

/// Whether two problems have equal structure keys. Writes none, which takes longer than all else about a new size.
bool same_structure(const AttentionProblem& problem, const AttentionProblem& other);

}  // namespace scoremod::problem
