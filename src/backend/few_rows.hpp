#pragma once

#include <algorithm>
#include <cstdint>

#include "scoremod/problem.hpp"

namespace scoremod::backend {

/// Queries or keys that a backward sums over, up to which o's rounding would be much of the error: rows' deltas, the
/// sums of o d_o, are then made from weights and their gradients. A trial has as many of them as the problem.
inline constexpr std::int64_t kFewRows = 64;

inline bool has_few_rows(const AttentionProblem& problem) {
  return std::min(problem.seq_q, problem.seq_kv) <= kFewRows;
}

}  // namespace scoremod::backend
