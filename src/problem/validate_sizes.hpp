#pragma once

#include <cstdint>
#include <string>

#include "scoremod/problem.hpp"

namespace scoremod::problem {

/// Refuses a size that indices cannot count.
void validate_size(const std::string& field, std::int64_t size);
/// The part of validate() that concerns the problem's sizes.
void validate_sizes(const AttentionProblem& problem);

}  // namespace scoremod::problem
