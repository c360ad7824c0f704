#pragma once

#include "scoremod/problem.hpp"

#include "base/bytes.hpp"

namespace scoremod::problem {

/// Bytes that say all of a problem, the same on every machine and in every version that knows the same fields: what is
/// kept by problem is kept by them, compared in full. Problems with equal bytes are equal, and equal ones have equal
/// bytes (but for a scale of 0 and -0).
Bytes canonical_bytes(const AttentionProblem& problem);

}  // namespace scoremod::problem
