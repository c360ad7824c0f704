#pragma once

#include <string>
#include <vector>

#include "check/check_case.hpp"

namespace scoremod::test {

/// Problems that the attention kernels must be right on: every kind of mask, lengths that are odd, one query, one key,
/// grouped heads, head dims from 8 to 256, rows that are not aligned, offsets, rows without a kept key. `small` ones
/// are for a host.
std::vector<checking::CheckCase> attention_kernels_cases(bool small = false);

/// Forwards of few queries against many keys: 1 to 64 queries, groups of 1 to 16 heads, lengths that are odd, every
/// kind of mask, offsets, fields of the softmax, wide and unaligned rows.
std::vector<checking::CheckCase> few_query_cases(bool small = false);

/// Random inputs with infinities and NaN in some rows of q, k, v and d_o. They must reach what keeps these rows, and
/// nothing else.
ProblemInputs poisoned_inputs(const AttentionProblem& problem, std::uint64_t seed);

}  // namespace scoremod::test
