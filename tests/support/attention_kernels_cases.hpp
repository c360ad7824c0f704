#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "check/check_case.hpp"

namespace scoremod::test {

/// Problems that the attention kernels must be right on. They have every kind of mask, odd lengths, one query, one key,
/// grouped heads and head dims from 8 to 256. They also have rows that are not aligned, offsets, and rows without a
/// kept key. `small` ones are for a host.
std::vector<checking::CheckCase> attention_kernels_cases(bool small = false);

/// Decode problems: 1 to 64 queries against many keys, groups of 1 to 16 heads and odd lengths. They have every kind of
/// mask, offsets, fields of the softmax, and wide and unaligned rows.
std::vector<checking::CheckCase> split_kv_cases(bool small = false);

/// A case at other lengths. Its operands are dense.
checking::CheckCase with_lengths(checking::CheckCase test, std::int64_t seq_q, std::int64_t seq_kv);

/// Random inputs with infinities and NaN in some rows of q, k, v and d_o. They must reach the outputs that keep these
/// rows, and nothing else.
ProblemInputs poisoned_inputs(const AttentionProblem& problem, std::uint64_t seed);

}  // namespace scoremod::test
