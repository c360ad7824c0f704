#pragma once

#include <vector>

#include "scoremod/problem.hpp"

#include "backend/candidate.hpp"

namespace scoremod::backend {

inline constexpr const char* kCausal = "value = score\nkeep = kv_idx <= q_idx";

/// Batch 4, 16 heads, 4096 x 4096, head dim 128, bf16, both directions; no operand's gradient is wanted.
AttentionProblem problem_of(const char* program);

/// Devices that are not here.
Target h200();
Target a100();

/// The kernels' candidates for a direction.
std::vector<Candidate> candidates_of(const AttentionProblem& problem, Direction direction,
                                     const Target& target = h200());

}  // namespace scoremod::backend
