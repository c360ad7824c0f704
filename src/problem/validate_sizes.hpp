#pragma once

#include <cstdint>
#include <string_view>

#include "scoremod/problem.hpp"

namespace scoremod::problem {

/// Indices are i32, and below this limit the difference of two of them and their sum cannot wrap.
inline constexpr std::int64_t kMaxSize = std::int64_t{1} << 30;
inline bool is_size(std::int64_t size) { return size >= 1 && size <= kMaxSize; }

/// Refuses a size that indices cannot count.
void validate_size(std::string_view field, std::int64_t size);
/// The part of validate() that concerns the problem's sizes.
void validate_sizes(const AttentionProblem& problem);

/// validate() of a problem that has the structure of one which passed it (problem/structure_key): leaves out what
/// follows from the structure.
void validate_at_sizes(const AttentionProblem& problem);

}  // namespace scoremod::problem
