#pragma once

#include "scoremod/problem.hpp"

#include "base/bytes.hpp"

namespace scoremod::problem {

/// Bytes that describe all of a problem, the same on every machine and in every version that knows the same fields.
/// Caches use them as keys and compare them in full. Problems are equal exactly if their bytes are (except a scale of 0
/// and -0).
Bytes canonical_bytes(const AttentionProblem& problem);

}  // namespace scoremod::problem
