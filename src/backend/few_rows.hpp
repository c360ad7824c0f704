#pragma once

#include <algorithm>
#include <cstdint>

#include "scoremod/problem.hpp"

namespace scoremod::backend {

/// A backward that sums over at most so many queries or keys would suffer from o's rounding. Rows' deltas, rowsum(o *
/// d_o), are then made from weights and their gradients. A trial has as many queries and keys as the problem.
inline constexpr std::int64_t kFewRows = 64;

inline bool has_few_rows(const AttentionProblem& problem) {
  return std::min(problem.seq_q, problem.seq_kv) <= kFewRows;
}

}  // namespace scoremod::backend
