#pragma once

#include "scoremod/sizes.hpp"

namespace scoremod::problem {

/// Sizes that a problem with open ones may have, of about `about`, for questions at any sizes. Queries and keys differ
/// in number unless that is 1.
Sizes any_sizes(const AttentionProblem& problem, std::int64_t about = 1);

/// The problem with these in place of its open sizes, and its operands as they are: not validated.
AttentionProblem with_any_sizes(AttentionProblem problem, std::int64_t about);

/// problem_at() without validate(), which whoever compiles the problem does.
AttentionProblem with_sizes(AttentionProblem problem, const Sizes& sizes);

/// A problem and the sizes of a call.
struct OpenProblem {
  AttentionProblem problem;
  Sizes sizes;
};
/// All that may be open of a valid problem left open: problem_at() of the two is the problem again.
OpenProblem with_all_sizes_open(AttentionProblem problem);

}  // namespace scoremod::problem
